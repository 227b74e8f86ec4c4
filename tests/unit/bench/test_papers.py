"""What the benches of the papers' figures ask for, and the tables that are made of what they find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.fastflow import Split, middle_of
from bench.overlap import Pooled
from bench.page_tables import TABLES
from bench.paper_tables import best_share
from bench.utilisation import parser
from sophon_loader.decide import FILE, Choice, Facts, Policy, Rates
from tests.support.results import written

ONE = {"min": 0.1, "median": 0.2, "max": 0.3}
FACTS = Facts(40, Rates(1.0, 1.0, 1.0, 1.0), None, 4, 2, 0.0)
SPLIT: dict[str, Any] = {
    **{"images_per_s": 120.0, "seconds": 2.0, "loader_ms": 8.0, "agent_ms": 0.5, "bytes": 110_000.0},
    "range": [110.0, 125.0],
}
JOB = {"cut": 5, "share": 0.56, "images_per_s": 371.0, "tried_batches": 162, "tried_s": 9.0, "of_job": 0.0911}


@pytest.mark.parametrize(("cut", "share", "offloaded"), [(0, 1.0, 0), (3, 1.0, 40), (4, 0.25, 10), (4, 0.0, 0)])
def test_a_split_is_followed_whatever_the_facts(cut: int, share: float, offloaded: int) -> None:
    policy = Split(cut, share)
    assert isinstance(policy, Policy)
    counts = policy.plan(FACTS).counts()
    assert counts.get(Choice(cut, "pixels"), 0) == offloaded and counts.get(FILE, 0) == 40 - offloaded


@pytest.mark.parametrize(
    ("rates", "top"),
    [
        ((50, 97, 100, 97, 50), 0.5),
        ((50, 94, 100, 96, 60), 0.525),
        ((10, 50, 100, 60, 0), 0.5),
        ((100, 98, 92, 60, 50), 0.0),
        ((50, 60, 92, 98, 100), 1.0),
    ],
)
def test_the_best_share_is_the_top_of_the_curve_near_the_fastest(rates: tuple[float, ...], top: float) -> None:
    rows = [{"share": n / 4, "images_per_s": rate} for n, rate in enumerate(rates)]
    assert best_share(rows) == pytest.approx(top, abs=0.05)
    assert rows[0]["share"] <= best_share(rows) <= rows[-1]["share"]


def test_of_a_plan_s_runs_the_middle_one_counts() -> None:
    runs = [{"images_per_s": rate, "run": number} for number, rate in enumerate((3.0, 9.0, 5.0))]
    assert middle_of(runs) == {"images_per_s": 5.0, "run": 2, "range": [3.0, 9.0]}


@pytest.mark.parametrize("mb", [0.001, 1.0, 4.0])
def test_a_gradient_has_the_size_that_was_asked_for(mb: float) -> None:
    model = Pooled(1e6 * mb)
    assert sum(one.nbytes for one in model.parameters()) == pytest.approx(1e6 * mb, rel=0.5)
    assert model(torch.zeros(2, 3, 32, 32)).shape[0] == 2


def test_utilisation_has_three_models_and_all_policies_unless_told_otherwise() -> None:
    options = parser().parse_args([])
    assert len(options.models) == 3 and {"no-off", "fastflow", "auto"} <= set(options.policies)


def test_tables_of_the_papers_figures(tmp_path: Path) -> None:
    case = {"model": "alexnet", "batch_size": 16, "step_ms": 43.2, "policies": {"no-off": {"gpu_idle_share": ONE}}}
    text = TABLES["utilisation"](written(tmp_path, "utilisation", {"cases": [case]}))
    assert "| alexnet | 16 | 43 | 20 (10-30) |" in text
    found = {
        "splits": [{**SPLIT, "cut": 0}],
        "shares": [{**SPLIT, "share": 0.5}],
        "jobs": [{**JOB, "form": "fastflow", "store": "empty"}],
        "best_cut": 5,
    }
    text = TABLES["fastflow"](written(tmp_path, "fastflow", found))
    assert "| 50% | 120 (110-125) | 2.00 | 8.00 | 0.50 | 110.0 |" in text
    assert "| `fastflow` | empty | 5 | 56% | 371 | 162 | 9.0 | 9.11% |" in text
    times = {"step_s": 0.3, "waited_s": 0.1, "backward_s": 0.2, "rank1_backward_s": 0.25, "offloaded": 0.9}
    case = {"policy": "auto", "checkpoints": True, "prefetch": 2, **times}
    text = TABLES["overlap"](written(tmp_path, "overlap", {"cases": [case]}))
    assert "| auto | yes | 2 | 0.300 | 0.100 | 0.200 | 0.250 | 90% |" in text


def test_policies_that_were_not_measured_at_some_cores_are_left_out_there(tmp_path: Path) -> None:
    entry = {"policy": "auto", "seconds": ONE, "predicted_to_measured": None, "times_faster": ONE}
    written(tmp_path, "policies-0.25-photos", {"summary": [entry]})
    text = TABLES["fewer-cores"](
        written(tmp_path, "policies-photos", {"summary": [{**entry, "policy": "no-off"}, entry]})
    )
    assert "| photos | 0.25 | 0.20 |  |" in text and "| photos | 1 | 0.20 | 0.20 |" in text
