"""Stamps, summaries, and pages made of them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bench import against, latency, loading, record, tables
from bench.catalogue import BENCHES, named, runs
from bench.markdown import MISSING, Results
from bench.page_tables import TABLES
from tests.support.results import written

MAX_NBYTES = 300_000
"""Of all result files in git."""


def test_a_summary_has_the_number_of_rounds_instead_of_rounds() -> None:
    rows = {
        "epochs": [{"round": number, "policy": policy} for number in range(3) for policy in ("a", "b")],
        "nested": [{"rounds": [{"seconds": 1.0}, {"seconds": 2.0}], "ratio": {"median": 1.23456789}}],
        "settings": {"epochs": 12, "rounds": 5},
    }
    assert record.summary_of(rows) == {
        "epochs": 3,
        "nested": [{"rounds": 2, "ratio": {"median": 1.23457}}],
        "settings": {"epochs": 12, "rounds": 5},
    }


def test_a_command_is_stamped_without_outputs_and_paths() -> None:
    given = ["--data", "/some/where/data/imagenet", "--json", "/tmp/x.json", "--summary=y.json", "--epochs", "3"]
    assert record.short_command("bench.policies", given) == (
        "python -m bench.policies --data .../data/imagenet --epochs 3"
    )


def test_a_stamp_names_no_host_and_no_path() -> None:
    stamp = record.stamp("python -m bench.planner")
    assert set(stamp) == {"commit", "clean", "machine", "versions", "command"}
    assert set(stamp["machine"]) == {"cpu", "cores"}
    assert set(stamp["versions"]) == {"python", "torch", "torchvision", "pillow"}


def test_results_are_written_on_few_lines_and_read_back(tmp_path: Path) -> None:
    value = {
        "spread": {"min": 1, "median": 2, "max": 3},
        "long": [{"name": "x" * 60, "other": ["y" * 60]}],
        "none": None,
    }
    record.write_json(tmp_path / "a" / "b.json", value)
    text = (tmp_path / "a" / "b.json").read_text()
    assert json.loads(text) == value
    assert '"spread": {"min": 1, "median": 2, "max": 3}' in text


def test_the_results_in_git_are_small_and_stamped() -> None:
    files = sorted(record.RESULTS.glob("*"))
    assert sum(file.stat().st_size for file in files) < MAX_NBYTES
    for file in files:
        found = json.loads(file.read_text())
        assert set(found) == {"commit", "clean", "machine", "versions", "command", "rows"}, file.name
        assert found["command"].startswith("python -m bench.") and "--json" not in found["command"]


def test_result_files_are_named_by_their_benches() -> None:
    known = {run.name for run in runs({"imagenet": Path("imagenet"), "photos": Path("photos")})}
    found = {file.stem for file in record.RESULTS.glob("*.json")}
    assert found <= known


@pytest.mark.parametrize("page", tables.PAGES)
def test_a_page_is_what_the_command_makes_of_the_results(page: str) -> None:
    assert tables.is_filled(record.REPOSITORY / page), "run `python -m bench.tables`"


def test_every_table_is_on_a_page() -> None:
    text = "".join((record.REPOSITORY / page).read_text() for page in tables.PAGES)
    assert {name for name in TABLES if f"<!-- bench: {name} -->" in text} == set(TABLES)


def test_filling_replaces_what_is_between_the_marks_and_keeps_the_rest(tmp_path: Path) -> None:
    page = "before\n<!-- bench: tail -->\nold\n<!-- /bench -->\nafter\n"
    filled = tables.filled(page, Results(tmp_path))
    assert filled == f"before\n<!-- bench: tail -->\n{MISSING}\n<!-- /bench -->\nafter\n"
    assert tables.filled(filled, Results(tmp_path)) == filled
    with pytest.raises(KeyError):
        tables.filled(page.replace("tail", "nonsense"), Results(tmp_path))


@pytest.mark.parametrize("name", sorted(set(TABLES) - {"benches", "stamps"}))
def test_a_table_without_results_says_so(name: str, tmp_path: Path) -> None:
    assert TABLES[name](Results(tmp_path)) == MISSING


def test_a_fault_that_changes_samples_is_told(tmp_path: Path) -> None:
    lost_s = {"min": -0.1, "median": 0.2, "max": 1.25}
    kinds = [{"kind": "killed", "same": True, "lost_s": lost_s}, {"kind": "cut", "same": False, "lost_s": lost_s}]
    text = TABLES["faults"](written(tmp_path, "faults", {"summary": kinds}))
    assert "| killed | yes | +0.20 (-0.10 to +1.25) |" in text
    assert "| cut | no |" in text


def test_look_ahead_is_told_beside_a_prefetch_factor_with_the_memory_of_both(tmp_path: Path) -> None:
    def line(prefetch: str | int, round_trip_ms: float, ratio: float) -> dict[str, Any]:
        about = {
            "part": "pictures",
            "link_mbit": 100.0,
            "batch_size": 16,
            "workers": 4,
            "system": "auto",
            "choices": {},
        }
        figures = {"images_per_s": one(280.0), "ratio": one(ratio)}
        weight = {} if round_trip_ms else {"pss_mb": one(700.0), "private_mb": one(310.0), "shm_mb": one(38.5)}
        return {**about, "prefetch": prefetch, "round_trip_ms": round_trip_ms, **figures, **weight}

    def one(value: float) -> dict[str, float]:
        return {"min": value, "median": value, "max": value}

    lines = [line(2, 0.0, 1.0), line(2, 100.0, 0.6), line("none", 0.0, 1.0), line("none", 100.0, 0.97)]
    rows = {"settings": {"data": "imagenet"}, "summary": lines, "unavailable": {}}
    text = TABLES["look-ahead"](written(tmp_path, "look-ahead", rows))
    assert "| pictures | 100 | 16 | 4 | auto | 2 | 280 | 0.600 (0.600-0.600) | 700 | 310 | 38 |" in text
    assert "| none | 280 | 0.970 (0.970-0.970) |" in text


def test_an_epoch_is_long_beside_what_is_handed_out_at_its_start(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / "class").mkdir(exist_ok=True)
        (tmp_path / "class" / f"{number}.jpg").touch()
    given = ["--data", str(tmp_path), "--parts", "pictures", "--batch-size", "16", "256", "--workers", "1", "4"]
    parts = latency.parts_of(latency.parser().parse_args(given), tmp_path)
    assert [(part.batch_size, part.workers, part.repeat) for part in parts] == [
        (16, 1, 4),
        (16, 4, 4),
        (256, 1, 11),
        (256, 4, 41),
    ]


def test_the_most_memory_is_that_of_the_whole_time() -> None:
    def run() -> None:
        held = bytearray(b"x" * 100_000_000)
        time.sleep(0.3)
        del held
        time.sleep(0.1)

    assert (
        loading.memory_peaks(run)["private_mb"] >= 100 + loading.memory_peaks(lambda: time.sleep(0.2))["private_mb"] / 2
    )


def test_the_slowest_client_and_each_attacker_are_told(tmp_path: Path) -> None:
    found = {"shares": [0.8, 1.2], "slowest": 0.8, "agent_mb": 412.4, "kept": {"listings": 0.93}}
    text = TABLES["fairness"](written(tmp_path, "fairness", found))
    assert "| the slowest of 2 clients, of the fair share | 0.80 |" in text
    assert "| a client beside listings, of its rate alone | 0.93 |" in text


def test_unknown_stamps_are_said_to_be_unknown(tmp_path: Path) -> None:
    for clean, words in ((True, "0123456:"), (False, "0123456 with changes:"), ("unknown", "changes or not: unknown")):
        ratio = {"min": 1, "median": 1, "max": 1}
        nbytes = {"loader": 4, "device": 1}
        rows = [{"workers": 1, "device": "cpu", "summary": {"ratio": ratio}, "bytes_per_image": nbytes}]
        assert words in TABLES["tail"](written(tmp_path, "tail", rows, clean=clean))


def test_runs_are_named_by_bench_and_pictures() -> None:
    found = runs({"a": Path("a"), "b": Path("b")})
    names = [run.name for run in found]
    assert len(names) == len(set(names))
    assert {"policies-a", "policies-b", "planner", "hotpath", "live-a", "live-b"} <= set(names)
    by_name = {run.name: run for run in found}
    assert by_name["hotpath"].folder == Path("a") and by_name["live-b"].folder == Path("b")
    assert by_name["policies-0.25-a"].arguments(quick=False)[:4] == ["--data", "a", "--agent-cores", "0.25"]
    assert [run.name for run in named(["peers", "planner"], found)] == ["planner", "peers-a", "peers-b"]


def test_every_bench_can_be_imported_under_its_name() -> None:
    for bench in BENCHES:
        path = record.REPOSITORY / bench.module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def test_figures_of_two_checkouts_are_named_by_the_words_of_their_entries() -> None:
    rows = {
        "throughput": [{"policy": "auto", "workers": 2, "limit": "gpu", "ratio": {"median": 1.5}}],
        "summary": [{"policy": "no-off", "seconds": {"median": 2}}, {"case": "starved-2", "ratio": 1.1, "same": True}],
        "epochs": [{"round": 0, "policy": "auto", "seconds": 3.0}],
    }
    assert dict(against.leaves(rows)) == {
        "throughput[auto 2 gpu].workers": 2.0,
        "throughput[auto 2 gpu].ratio.median": 1.5,
        "summary[no-off].seconds.median": 2.0,
        "summary[starved-2].ratio": 1.1,
        "epochs[0].round": 0.0,
        "epochs[0].seconds": 3.0,
    }


STAMP: dict[str, object] = {"commit": "0123456789", "clean": True, "machine": {}, "versions": {}, "command": "x"}


def test_what_follows_a_change_is_told_by_case(tmp_path: Path) -> None:
    spread = {"min": 1.0, "median": 1.05, "max": 1.2}
    figures: dict[str, object] = {"images_per_s": 52.4, "ratio": 0.97, "at_once": 0.61, "least_by_no_off": 2.1}
    figures |= {"no_off_least": 0.96, "bottleneck": "wire"}
    cases = {
        "first-epoch": {"ratio": spread, "first_batch_s": {"auto": spread, "no-off": spread}},
        "rank": {"ratios": [spread, {"min": 0.9, "median": 0.98, "max": 0.99}]},
        "link": {"changes": [{"to": "link_mbit 20", **figures}, {"to": "link_mbit 200", "failed": "no answer"}]},
    }
    record.write_json(tmp_path / "live-a.json", {**STAMP, "rows": {"cases": cases, "left_out": {"disk": "no group"}}})
    text = TABLES["live"](Results(tmp_path))
    assert "**a**" in text and "| first epoch, times a steady one | 1.050 (1.000-1.200) |" in text
    assert "| epochs of rank 0 of 8, times a single rank's images/s | 1.05 (1.00-1.20), 0.98 (0.90-0.99) |" in text
    assert "| link | link_mbit 20 | 52 | 0.97 | 0.61 | 2.10 | 0.96 | wire |" in text
    assert "failed: no answer" in text and "`disk` was left out: no group." in text


def test_steadiness_is_told_as_far_as_it_was_measured(tmp_path: Path) -> None:
    brought = [{"conditions": "link_mbit 40", "more": "wire", "said": 1.9, "measured": 1.8}]
    cases = {
        "steady": {"policies": {"auto": {"deviation": 0.021, "windows": 120, "median": 270.0}}},
        "idle-wire": {"least": 0.81, "images_per_s": 250.0},
        "verdict": {"right": 39, "decided": 40, "by_resource": {"wire": "8 of 8"}, "would_bring": {"rows": brought}},
        "memory": {"beyond_index": {"made-up index": {"no-off": None, "auto": 0.01}}},
        "local": {"first_batch_s_later": 0.2, "first_epoch_s_later": -0.4},
    }
    record.write_json(tmp_path / "steadiness.json", {**STAMP, "rows": {"cases": cases}})
    text = TABLES["steadiness"](Results(tmp_path))
    for told in (
        "2.1% of 120",
        "250 images/s: least window by their median | 0.81 |",
        "39 of 40 (wire 8 of 8)",
        "| 1.90 / 1.80 |",
        "`auto` 0.01 |",
        "+0.20 s / -0.40 s",
    ):
        assert told in text
    record.write_json(tmp_path / "steadiness.json", {**STAMP, "rows": {"cases": {}}})
    assert "standard deviation" not in TABLES["steadiness"](Results(tmp_path))
