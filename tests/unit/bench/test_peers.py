"""What bench.peers makes of its rows; the systems themselves need packages that the project does not have."""

from __future__ import annotations

from typing import Any

import pytest

from bench.peers.__main__ import bar, summarise
from bench.peers.systems import SYSTEMS, pictures


def _entry(name: str, **values: Any) -> dict[str, Any]:
    return {"system": name, "ours": SYSTEMS[name].ours, "unavailable": None, **values}


def _row(name: str, seconds: float) -> dict[str, Any]:
    spent = {"interface_bytes": 1000, "server_cpu_s": 0.1, "loader_cpu_s": 0.2}
    return {"system": name, "round": 0, "seconds": seconds, "samples": 10, **spent}


def test_the_bar_is_the_ratio_to_the_fastest_peer_and_leaves_our_other_policies_out() -> None:
    rows = [_row("http", 2.0), _row("webdataset", 4.0), _row("no-off", 1.5), _row("auto", 1.0)]
    summary = summarise(rows, {row["system"]: _entry(row["system"]) for row in rows})
    assert bar(summary) == {"best_peer": "http", "times_faster": pytest.approx(2.0)}


def test_a_system_that_did_not_run_has_no_figures_and_is_no_part_of_the_bar() -> None:
    entries = {"http": _entry("http", unavailable="no nginx"), "auto": _entry("auto")}
    summary = summarise([_row("auto", 1.0)], entries)
    assert summary[0]["images_per_s"] is None and summary[0]["same_batches"] is None
    assert bar(summary) is None


@pytest.mark.parametrize(("other", "same", "order"), [("aa", True, True), ("bb", False, True)])
def test_batches_are_compared_by_the_digests_of_one_and_two_workers(other: str, same: bool, order: bool) -> None:
    one, two = {"digest": "aa", "labels_digest": "cc"}, {"digest": other, "labels_digest": "cc"}
    (entry,) = summarise([_row("http", 1.0)], {"http": _entry("http", one_worker=one, two_workers=two)})
    assert (entry["same_batches"], entry["same_order"]) == (same, order)


def test_pictures_come_in_the_order_of_imagefolder(tmp_path: Any) -> None:
    for name in ("b/2.jpg", "a/9.jpg", "b/1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [(file.name, label) for file, label in pictures(str(tmp_path))] == [("9.jpg", 0), ("1.jpg", 1), ("2.jpg", 1)]
