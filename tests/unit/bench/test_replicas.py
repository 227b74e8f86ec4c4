"""What bench.replicas makes of its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.page_tables import TABLES
from bench.replicas import BARS, LOADERS, SHARES, SUMS, summarise
from tests.support.results import written

ROUNDS: dict[str, list[dict[str, Any]]] = {
    "wire": [{"round": 0, "case": "wire", "policy": "auto", "one": 10.0, "two": 19.0, "unlike": 12.5}],
    "cpu": [{"round": 0, "case": "cpu", "policy": "all-off", "one": 10.0, "two": 18.0, "unlike": 10.0, "four": 38.0}],
}


def of_the_sums(case: str) -> dict[str, float]:
    return {row["agents"]: row["of_the_sum"]["median"] for row in summarise(ROUNDS[case])}


def test_a_loader_is_told_by_the_sum_of_what_its_agents_would_deliver() -> None:
    assert of_the_sums("wire") == pytest.approx({"two": 0.95, "unlike": 1.0})
    assert of_the_sums("cpu") == pytest.approx({"two": 0.9, "unlike": 0.8, "four": 0.95})


def test_four_agents_of_one_quota_must_deliver_nine_tenths_of_four_times_one() -> None:
    assert len(set(LOADERS["four"])) == 4 and {SHARES[agent] for agent in LOADERS["four"]} == {1.0}
    assert (SUMS["four"], BARS["cpu"]["four"]) == (4.0, 0.9)


def test_the_table_has_a_row_per_loader_of_each_case(tmp_path: Path) -> None:
    summary = [row for rounds in ROUNDS.values() for row in summarise(rounds)]
    settings = {"link_mbit": 20.0, "agent_cores": 0.15}
    rows = {"settings": settings, "rounds": 1, "summary": summary, "left_out": {}}
    text = TABLES["replicas"](written(tmp_path, "replicas", rows))
    assert "| 0.15 cores | all-off | four | 10 (10-10) | 38 (38-38) | 0.950 (0.950-0.950) (bar 0.9) |" in text
    assert "| 20 Mbit/s | auto | two |" in text and "| 20 Mbit/s | auto | four |" not in text
