"""Figures of one report that once were told in sentences that contradict each other: one consistent sentence each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.advice import verdict_of
from sophon_loader.report.page import page_of
from sophon_loader.report.report import Report
from sophon_loader.report.rows import rows_of
from sophon_loader.run.progress import told

REASON = "without offloading the training step limits, at 90 samples/s, and offloading would not change that"
PREPARED = replace(
    NO_TOTALS, samples=605, file_bytes=9_000_000, wire_bytes=3_200_000, read_bytes=9_000_000,
    encodings={"roi-jpeg": 497, "file": 108}, cuts={0: 605},
)  # fmt: skip
NO_AGENT_OF_USE = "No agent would be of use: an epoch takes hardly longer without any."


def report(**values: Any) -> Report:
    """One of a run in which the training waits for the network."""
    made = Report(
        "auto",
        plan_reason=REASON,
        epoch=0,
        seconds=10.0,
        awaited_s=8.0,
        rates={"wire_bytes_s": 2.5e6},
        limits={"wire": 1.0, "loader-cpu": 0.33},
        would_bring={"wire": 2.0},
        totals=PREPARED,
        judged=True,
    )
    return replace(made, **values)


def first_screen(of: Report) -> str:
    return page_of(of.told()).partition("Details")[0].replace("&#x27;", "'").replace("&quot;", '"')


@pytest.mark.parametrize("more", ["", "; the network's speed is a guess"])
def test_a_plan_that_offloads_nothing_now_after_samples_that_were(more: str) -> None:
    of = report(plan_reason=f"{REASON}: nothing is offloaded{more}")
    says = f"{REASON}: nothing is offloaded now, after 497 of 605 samples were{more}"
    assert dict(rows_of(of))["why this plan"] == of.as_dict()["plan_reason"] == says
    assert of.summary.startswith("497 of 605 samples cut out of the file at the agent")
    none = report(plan_reason=f"{REASON}: nothing is offloaded", totals=NO_TOTALS)
    assert none.as_dict()["plan_reason"] == f"{REASON}: nothing is offloaded"


def test_an_agent_of_which_twice_the_cpu_would_bring_something_is_of_use() -> None:
    of = report(wanted_agent_cores=0.0, wanted_agents=0.0, would_bring={"wire": 2.0, "agent-cpu": 1.41})
    rows = dict(rows_of(of))
    assert "twice the agent's CPU 41 %" in rows["what would help"]
    assert rows["agents of use"] == "More cores of agents would be of use; how many is not known."
    assert rows["agents of use"] in first_screen(of) and NO_AGENT_OF_USE not in first_screen(of)
    without = report(wanted_agent_cores=0.0, wanted_agents=0.0, would_bring={"wire": 2.0, "agent-cpu": 1.04})
    assert dict(rows_of(without))["agents of use"] == NO_AGENT_OF_USE


def test_samples_that_were_decoded_at_the_agent_are_called_so() -> None:
    of = report(totals=replace(PREPARED, encodings={"pixels": 151, "file": 454}, cuts={0: 454, 1: 151}))
    assert dict(rows_of(of))["ops at the agent"] == "none for 454 samples, decoding alone for 151 samples"
    several = report(totals=replace(PREPARED, encodings={"pixels": 605}, cuts={1: 5, 2: 600}))
    says = "decoding alone for 5 samples, 2 for 600 samples (decoding is the first)"
    assert dict(rows_of(several))["ops at the agent"] == says


def test_more_bytes_than_the_files_have_are_named_and_explained() -> None:
    of = report(totals=replace(PREPARED, wire_bytes=16_920_000))
    more = "88 % more than the files have, because prepared samples can be larger; it spares the loader's CPU"
    assert dict(rows_of(of))["sent"] == f"16.9 MB for files of 9.0 MB (188 %): {more}"
    assert of.summary.endswith("16.9 MB sent for files of 9.0 MB, which is more, and spares the loader's CPU")
    assert "None: 88 % more were sent" in first_screen(of) and "0 bytes (0 %)" not in first_screen(of)
    assert "88 % more than the files sent" in told(of, PREPARED, 10.0)
    files = report(totals=replace(PREPARED, wire_bytes=9_036_000, encodings={"file": 605}))
    assert dict(rows_of(files))["sent"] == "9.0 MB for files of 9.0 MB (100 %)"


def test_an_epoch_below_the_estimate_without_offloading_comes_with_advice() -> None:
    of = report(throughput={"io": 60.5 / 0.86, "gpu": 400.0})
    advice = (
        'If the next epoch is no faster, compare one under policy="no-off": '
        "by the loader's estimate 16 % more samples per second could come without offloading."
    )
    assert verdict_of(of.as_dict()).advice[0] == advice
    assert dict(rows_of(of))["what would help"].startswith(advice)
    assert "0.86 times" in first_screen(of) and advice in first_screen(of)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"awaited_s": 0.1}, "The training hardly waits, so offloading or not makes little difference."),
        ({"totals": replace(PREPARED, encodings={"file": 605})}, "Nothing was offloaded, so the difference"),
        ({"throughput": {"io": 61.0}}, "0.99 times as many as could come without offloading"),
        ({"throughput": {"io": 30.0}}, "2 times as many as could come without offloading"),
    ],
)  # fmt: skip
def test_where_offloading_is_not_the_reason_no_comparison_is_advised(values: dict[str, Any], says: str) -> None:
    of = report(**{"throughput": {"io": 60.5 / 0.86}, **values})
    assert says in first_screen(of) and "no-off" not in first_screen(of)
