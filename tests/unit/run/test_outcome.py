"""Why nothing was offloaded: the first reason that is enough by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.report import Report
from sophon_loader.run.outcome import Circumstances, why_nothing

AGENT = "the agent at tcp://files:5555"
RUNS = Circumstances(AGENT)
SILENT = f"{AGENT} did not answer for 24 of 24 samples"


def report(encoding: str = "file", **counted: Any) -> Report:
    totals = replace(NO_TOTALS, samples=24, encodings={encoding: 24}, **counted)
    return Report("auto", plan_reason="files cost least: nothing is offloaded", totals=totals)


@pytest.mark.parametrize(
    ("found", "told", "why"),
    [
        (Circumstances(), report(), "no agent was given"),
        (Circumstances(AGENT, alone="no agent was started: no cores"), report(), "no agent was started: no cores"),
        (replace(RUNS, starting=True), report(), f"{AGENT} is still starting"),
        (replace(RUNS, starting=True, missing="silence"), report(), f"{AGENT} is missing: silence"),
        (replace(RUNS, starting=True, missing="silence", ready_after=20), report(),
         f"{AGENT} was ready after 20 of 24 samples, and is used from the next epoch on"),
        (replace(RUNS, missing="silence", ready_after=20), report("webp"),
         f"{AGENT} was ready after 20 of 24 samples"),
        (replace(RUNS, missing="silence"), report("webp"), ""),
        (RUNS, Report("auto"), "no sample has been delivered"),
        (replace(RUNS, no_op="the agent could only decode"), report(), "the agent could only decode"),
        (replace(RUNS, gone=True), report(fallbacks=24), SILENT),
        (replace(RUNS, no_op="x", gone=True), report(fallbacks=24), SILENT),
        (replace(RUNS, offloads=False, gone=True), report(fallbacks=24), SILENT),
        (RUNS, report(fallbacks=3), f"{AGENT} sent nothing usable for 3 of 24 samples"),
        (RUNS, report(degraded=24), f"{AGENT} sent the whole file for 24 of 24 samples"),
        (replace(RUNS, offloads=False), report(), "policy auto: files cost least"),
        (RUNS, report(), f"policy auto: files cost least; for every sample {AGENT} found the file cheaper"),
        (replace(RUNS, ready_after=20), report(),
         f"{AGENT} was ready after 20 of 24 samples; policy auto: files cost least"),
        (replace(RUNS, gone=True), report("roi-jpeg", fallbacks=3), ""),
    ],
)  # fmt: skip
def test_why_nothing_was_offloaded(found: Circumstances, told: Report, why: str) -> None:
    assert why_nothing(found, told) == why
