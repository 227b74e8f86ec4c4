"""decide/dual.py: sweeps by brute force, bounds against scipy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sophon_loader.decide import ChoiceTable, Rates
from sophon_loader.decide.cost import EpochWork, time_without_offloading
from sophon_loader.decide.dual import Problem, column_at, file_column, least_time, least_traffic, sweep
from sophon_loader.decide.facts import Facts
from sophon_loader.errors import PlanError
from tests.support.decide_tables import CHOICES, JOBS, WIRE_BOUND, facts_of, linear_optimum, random_table


@pytest.mark.parametrize("samples", [1, 50, 2048])
@pytest.mark.parametrize("prices", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1e-8, 0.5, 0.4), (0, 0, 0)])
def test_a_sweep_takes_the_cheapest_that_is_there(samples: int, prices: Any) -> None:
    table = random_table(samples, absent=0.4)
    problem = Problem.of(facts_of(table))
    at = np.array(prices, dtype=float)
    chosen, column = sweep(problem, at), column_at(problem, at)
    rows = np.arange(samples)
    usable = np.isfinite(table.wire_bytes)
    cost = np.where(usable, table.wire_bytes, 0) * prices[0] + table.loader_s * prices[1] + table.agent_s * prices[2]
    cost[~usable] = np.inf
    assert usable[rows, chosen].all()
    np.testing.assert_allclose(cost[rows, chosen], cost.min(axis=1), rtol=1e-5)
    assert column.sums[0] == pytest.approx(table.wire_bytes[rows, chosen].sum(dtype=np.float64))


@pytest.mark.parametrize("job", JOBS)
def test_the_bounds_enclose_the_optimum(job: str) -> None:
    table = random_table(500, seed=3)
    problem = Problem.of(facts_of(table, JOBS[job]))
    mix = least_time(problem, [file_column(problem)], 1e-7, 300)
    best = linear_optimum(table, JOBS[job])
    assert mix.lower <= best * (1 + 1e-6) and mix.upper >= best * (1 - 1e-6)
    assert mix.upper - mix.lower <= 1e-6 * best
    assert mix.shares.sum() == pytest.approx(1)


def test_bounds_meet_where_no_sweep_beats_the_bound_that_is_known() -> None:
    """The optimum is at the GPU: the search must not stall."""
    costs = np.random.default_rng(0).gamma(3, 1, (3, 100, 5)).astype(np.float32)
    facts = facts_of(ChoiceTable(CHOICES, *costs), Rates(1.75, 3.0, 3.5, 5.0))
    problem = Problem.of(facts)
    goal = np.array([1 / costs[0, :, 0].sum(dtype=np.float64), 0.0, 0.0])
    columns = [file_column(problem)]
    time = least_time(problem, columns, 1e-6, 100)
    assert time.upper - time.lower <= 1e-6 * time.upper
    traffic = least_traffic(problem, columns, time.shares, goal, 1.01 * time.upper, 1e-6, 100)
    assert traffic.upper - traffic.lower <= 1e-6


def test_least_traffic_keeps_the_budget_and_beats_the_start() -> None:
    problem = Problem.of(facts_of(random_table(500), JOBS["tight"]))
    columns = [file_column(problem)]
    time = least_time(problem, columns, 1e-6, 300)
    before = time.shares @ np.array([column.sums for column in columns])
    goal = np.array([1 / columns[0].sums[0], 0.0, 0.0])
    traffic = least_traffic(problem, columns, time.shares, goal, 1.05 * time.upper, 1e-6, 300)
    after = traffic.shares @ np.array([column.sums for column in columns])
    assert problem.seconds(after) <= 1.05 * time.upper * (1 + 1e-9)
    assert after[0] < before[0]
    assert traffic.lower - 1e-9 <= goal @ after <= traffic.upper + 1e-9
    assert traffic.upper - traffic.lower <= 1e-5


@pytest.mark.parametrize("cached", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("job", JOBS)
def test_what_is_cached_needs_neither_wire_nor_agent(job: str, cached: float) -> None:
    """At the prices of a column all that is cached is read here, or none, whichever costs less."""
    facts = replace(facts_of(random_table(500, seed=3), JOBS[job]), cached=cached)
    problem = Problem.of(facts)
    files = file_column(problem)
    assert files.sums == pytest.approx(files.asked * [1 - cached, 1, 1 - cached])
    for prices in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [1e-6, 1, 1]):
        column = column_at(problem, np.array(prices, dtype=float))
        here, asked = files.asked * [0, 1, 0], column.asked
        assert column.kept_here == (here @ prices <= asked @ prices)
        assert column.sums == pytest.approx(cached * (here if column.kept_here else asked) + (1 - cached) * asked)
    without = time_without_offloading(random_table(500, seed=3), JOBS[job], cached)
    work = EpochWork(wire_bytes=files.sums[0], loader_s=files.sums[1], agent_s=files.sums[2])
    assert vars(work.time(500, JOBS[job])) == pytest.approx(vars(without))


@pytest.mark.parametrize("job", JOBS)
def test_more_in_the_cache_is_never_slower(job: str) -> None:
    """And the bounds hold: a mix of columns comes as near as without a cache."""
    before = np.inf
    for cached in (0.0, 0.25, 0.5, 0.75, 1.0):
        problem = replace(Problem.of(facts_of(random_table(500, seed=5), JOBS[job])), cached=cached)
        mix = least_time(problem, [file_column(problem)], 1e-6, 300)
        assert mix.upper <= before * (1 + 1e-6) and mix.upper - mix.lower <= 1e-5 * mix.upper
        before = mix.upper


def test_a_problem_needs_a_table() -> None:
    with pytest.raises(PlanError, match="table must be given"):
        Problem.of(Facts(3, WIRE_BOUND, None, 4, 2, 0.0))
