"""The report: the keys that machines rely on, and a table for people."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.report import Report
from sophon_loader.workers.counters import NO_TOTALS, Statistics

KEYS = {
    *("epoch", "policy", "seconds", "samples", "bottleneck", "rates", "file_bytes", "wire_bytes", "choices", "cuts"),
    *("loader_cpu_s", "agent_cpu_s", "retries", "fallbacks", "predicted_seconds"),
}
"""What DESIGN.md promises."""


def report() -> Report:
    report = Report(policy="sophon", plan_reason="the wire is the bottleneck", notes=("Lambda stays at the loader",))
    report.rates = {"wire": 1e7}
    nothing = Statistics(1, ["file"]).totals(0)
    totals = replace(nothing, samples=5, wire_bytes=400, cuts={0: 2, 3: 3}, encodings={"file": 2, "webp": 3})
    report.update(3, 12.5, totals)
    return report


def test_the_promised_keys_are_there() -> None:
    assert set(report().as_dict()) >= KEYS
    assert set(Report(policy="no-off").as_dict()) >= KEYS


def test_it_is_plain_data() -> None:
    values = report().as_dict()
    assert json.loads(json.dumps(values))["choices"] == {"file": 2, "webp": 3}
    assert values["cuts"] == {0: 2, 3: 3}
    assert (values["epoch"], values["seconds"], values["samples"]) == (3, 12.5, 5)


def test_a_snapshot_stays_as_it_is() -> None:
    live = report()
    before = live.as_dict()
    snapshot = live.snapshot()
    live.update(4, 1.0, replace(live.totals, samples=9))
    live.rates["gpu"] = 3.0
    assert snapshot.as_dict() == before != live.as_dict()


def test_plain_data_is_a_copy() -> None:
    one = report()
    one.as_dict()["rates"].clear()
    one.as_dict()["choices"].clear()
    assert one.as_dict()["rates"] and one.as_dict()["choices"]


def test_the_table_shows_what_there_is_and_no_empty_rows() -> None:
    text = str(report())
    for part in ("epoch 3", "sophon", "webp: 3", "12.5", "Lambda stays at the loader", "the wire is the bottleneck"):
        assert part in text
    assert "bottleneck  " not in str(Report(policy="no-off"))
    assert repr(report()) == text


OFFLOADED = {"encodings": {"roi-jpeg": 90, "pixels": 2, "file": 4}, "wire_bytes": 4_500_000, "read_bytes": 10_300_000}
SENT = "92 of 96 samples preprocessed at the agent; 4.5 MB sent instead of 10.3 MB"


@pytest.mark.parametrize(
    ("counted", "why_not", "offloading", "summary"),
    [
        (OFFLOADED, "", True, SENT),
        ({**OFFLOADED, "fallbacks": 3}, "", True, f"{SENT}; 3 files read on this host instead"),
        (OFFLOADED, "nothing on 1 of 2 ranks: no agent was given", True,
         f"{SENT}; nothing on 1 of 2 ranks: no agent was given"),
        ({"encodings": {"file": 96}}, "no agent was given", False, "nothing offloaded: no agent was given"),
    ],
)  # fmt: skip
def test_one_sentence_says_what_was_offloaded(
    counted: dict[str, Any], why_not: str, offloading: bool, summary: str
) -> None:
    one = Report("auto", why_not, totals=replace(NO_TOTALS, samples=96, **counted))
    values = one.as_dict()
    assert (values["offloading"], values["summary"]) == (one.offloading, one.summary) == (offloading, summary)
    first = " ".join(re.split(r"[\s│]+", str(one).split("┩")[1].split("seconds")[0])).strip()
    assert first == f"summary {summary}"


@pytest.mark.parametrize(("nbytes", "says"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2e9, "2.0 GB")])
def test_sizes_have_units(nbytes: int, says: str) -> None:
    counted = replace(NO_TOTALS, samples=1, wire_bytes=nbytes, encodings={"pixels": 1})
    assert f"; {says} sent" in Report("auto", totals=counted).summary


def test_before_an_epoch_the_title_names_none() -> None:
    assert str(Report("auto", "no epoch has begun")).split("\n")[0].strip() == "policy auto"


def test_a_snapshot_does_not_change_with_the_epoch() -> None:
    report = Report(policy="auto", rates={"wire_bytes_s": 1.0})
    kept = report.snapshot()
    report.update(3, 1.0, NO_TOTALS)
    report.rates["wire_bytes_s"] = 2.0
    assert kept.epoch is None and kept.rates == {"wire_bytes_s": 1.0}
