"""decide/policies/sophon.py: the paper's greedy, by hand and at block edges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sophon_loader.decide import FILE, Choice, ChoiceTable, Plan, Rates, policy_named
from sophon_loader.decide.facts import OFFLOADS_FROM_CORES
from sophon_loader.decide.policies import sophon as module
from sophon_loader.decide.policies.sophon import by_efficiency, smallest_choices
from sophon_loader.decide.words import resource
from tests.support.decide_tables import Nested, facts_of, random_table, table_of

INF = math.inf
PIXELS, WEBP, ARRAY = Choice(2, "pixels"), Choice(2, "webp"), Choice(4, "array")


def plan_of(
    wire: Nested, agent: Nested, rates: Rates, choices: Sequence[Choice] = (FILE, PIXELS), loader: Nested | None = None
) -> Plan:
    return policy_named("sophon").plan(facts_of(table_of(wire, agent, loader, choices), rates))


def test_the_smallest_of_the_papers_encodings_wins() -> None:
    table = table_of(
        [[100, 60, 10, 40], [100, 40, 10, INF], [30, 60, 10, 40]], [[0] * 4] * 3, None, (FILE, PIXELS, WEBP, ARRAY)
    )
    assert smallest_choices(table).tolist() == [3, 1, 0]


def test_order_is_by_bytes_saved_per_second_beyond_reading() -> None:
    table = table_of([[100, 50]] * 4 + [[50, 100]], [[1, 2], [1, 1.5], [0, 4], [3, 3], [0, 1]], None, (FILE, PIXELS))
    # saved 50 each; 1, 0.5, 4 and 0 extra seconds; the last one grows
    assert by_efficiency(table, smallest_choices(table)).tolist() == [3, 1, 0, 2]


def test_equal_efficiency_goes_by_index() -> None:
    table = table_of([[100, 50]] * 50, [[0, 1]] * 50, None, (FILE, PIXELS))
    assert by_efficiency(table, smallest_choices(table)).tolist() == list(range(50))


@pytest.mark.parametrize(
    ("rates", "name"),
    [(Rates(1, 1e9, 1, 1), "gpu"), (Rates(1e9, 1e9, 1, 1), "loader-cpu"), (Rates(1e9, INF, INF, 1e-9), "agent-cpu")],
)
def test_another_bottleneck_means_no_offloading(rates: Rates, name: str) -> None:
    plan = plan_of([[100, 1]], [[1, 2]], rates, loader=[[1, 0]])
    assert plan.counts() == {FILE: 1}
    assert f"{resource(name)} limits, not the network" in plan.reason


@pytest.mark.parametrize(
    ("agent_s", "taken", "wire_s", "agent_cpu_s", "why"),
    [
        (20, 8, 200, 160, "the network still limits"),
        (35, 7, 225, 245, "then the agent's CPU limits"),  # 250 and 210 before: the last one still pays
        (40, 6, 250, 240, "then the agent's CPU limits"),  # one more would make it 225 and 280
    ],
)
def test_it_stops_when_the_wire_no_longer_leads(
    agent_s: Any, taken: Any, wire_s: Any, agent_cpu_s: Any, why: Any
) -> None:
    plan = plan_of([[100, 50]] * 8, [[0, agent_s]] * 8, Rates(INF, 2, INF, 1))
    assert np.flatnonzero(plan.chosen).tolist() == list(range(taken))
    assert (plan.predicted.wire_s, plan.predicted.agent_cpu_s) == (wire_s, agent_cpu_s)
    assert f"of 8 samples that shrink {taken} are offloaded, and {why}" in plan.reason


def test_it_stops_at_the_gpu() -> None:
    plan = plan_of([[100, 50]] * 10, [[0, 0.001]] * 10, Rates(0.0125, 1, INF, INF))
    assert plan.predicted.gpu_s == 800
    assert plan.predicted.wire_s == 800  # no longer the largest alone
    assert "then the training step limits" in plan.reason


def plain_greedy(table: ChoiceTable, rates: Rates) -> NDArray[np.uint8]:
    """The rule of the paper, sample by sample."""
    smallest = smallest_choices(table)
    sums = [array[:, 0].sum(dtype=np.float64) for array in (table.wire_bytes, table.loader_s, table.agent_s)]
    per = (1 / rates.wire_bytes_s, 1 / rates.loader_cores, 1 / rates.agent_cores)
    chosen = np.zeros(table.samples, np.uint8)
    for i in by_efficiency(table, smallest):
        terms = [total * unit for total, unit in zip(sums, per, strict=True)]
        gpu_s = table.samples / rates.gpu_samples_s
        if terms[0] <= max(terms[1], terms[2], gpu_s):
            break
        arrays = (table.wire_bytes, table.loader_s, table.agent_s)
        tried = [t + float(a[i, smallest[i]]) - float(a[i, 0]) for t, a in zip(sums, arrays, strict=True)]
        if max(gpu_s, *(t * unit for t, unit in zip(tried, per, strict=True))) > terms[0]:
            break
        sums, chosen[i] = tried, smallest[i]
    return chosen


def test_an_agent_with_next_to_no_cpu_counts_as_one_with_none() -> None:
    facts = facts_of(table_of([[100, 50]] * 8, [[0, 0.001]] * 8, None, (FILE, PIXELS)), Rates(INF, 2, INF, 0.01))
    sophon = policy_named("sophon")
    assert sophon.plan(replace(facts, offered_cores=OFFLOADS_FROM_CORES)).counts() == {PIXELS: 8}
    plan = sophon.plan(replace(facts, offered_cores=0.9 * OFFLOADS_FROM_CORES))
    assert plan.counts() == {FILE: 8}
    assert "the agent has next to no CPU (0.054 cores): nothing is offloaded" in plan.reason


@pytest.mark.parametrize("agent_cores", [0.02, 0.1, 0.5, 5])
def test_blocks_change_nothing(agent_cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)
    table = random_table(2000, seed=5)
    rates = Rates(1e9, 30e6, INF, agent_cores)
    plan = policy_named("sophon").plan(facts_of(table, rates))
    assert len(by_efficiency(table, smallest_choices(table))) > 5 * 64
    assert np.array_equal(plan.chosen, plain_greedy(table, rates))
