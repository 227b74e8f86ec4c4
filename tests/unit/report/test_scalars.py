"""Flat numbers of a report, for loggers: stable names, plain floats, nothing that is not known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.report import Report

COUNTED: dict[str, Any] = {
    **{"samples": 100, "wire_bytes": 5_000_000, "read_bytes": 20_000_000, "file_bytes": 25_000_000, "fallbacks": 3},
    **{"loader_cpu_s": 0.2, "agent_cpu_s": 0.1, "encodings": {"roi-jpeg": 80, "file": 20}},
}
TOTALS = replace(NO_TOTALS, **COUNTED)


def report() -> Report:
    known: dict[str, Any] = {"limits": {"wire": 0.9, "gpu": 0.3}, "workers": 2, "predicted_seconds": 9.0}
    known |= {"wanted_agent_cores": 0.0, "wanted_agents": 0.0}
    return Report("auto", epoch=4, seconds=10.0, totals=TOTALS, awaited_s=2.5, **known)


def test_rates_and_shares_in_their_units() -> None:
    told = report().scalars()
    assert (told["samples_per_s"], told["wire_mb_per_s"], told["waiting_share"]) == (10.0, 0.5, 0.25)
    assert (told["saved_share"], told["offloaded_share"]) == (0.75, 0.8)
    assert (told["loader_cpu_ms_per_sample"], told["agent_cpu_ms_per_sample"]) == (2.0, 1.0)
    assert (told["busy/wire"], told["busy/gpu"]) == (0.9, 0.3)
    assert (told["fallbacks"], told["retries"], told["predicted_seconds"]) == (3.0, 0.0, 9.0)
    assert (told["epoch"], told["seconds"], told["samples"], told["workers"]) == (4.0, 10.0, 100.0, 2.0)
    assert (told["wanted_agent_cores"], told["wanted_agents"]) == (0.0, 0.0), "0 is known; what is not, is left out"
    assert "wanted_agents" not in Report("auto", epoch=4, seconds=10.0, totals=TOTALS).scalars()


def test_all_are_finite_floats() -> None:
    assert all(type(value) is float and math.isfinite(value) for value in report().scalars().values())


def test_nothing_is_told_before_the_first_batch_nor_of_a_plain_loader() -> None:
    assert Report("auto", "no epoch has begun").scalars() == {}


def test_nothing_is_divided_by_nothing() -> None:
    told = Report("auto", epoch=0).scalars()
    assert told["samples"] == 0 and {"samples_per_s", "saved_share", "offloaded_share"}.isdisjoint(told)


def test_files_that_were_read_here_are_not_saved_bytes() -> None:
    totals = replace(TOTALS, wire_bytes=0, read_bytes=0)
    assert "saved_share" not in Report("auto", epoch=0, seconds=1.0, totals=totals).scalars()


@pytest.mark.parametrize("name", sorted(report().scalars()))
def test_the_page_lists_each_name(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    assert f"`{name}`" in page or name.startswith("busy/")
