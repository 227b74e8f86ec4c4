"""How many samples are asked for as files so that a cache fills: never for more time than was agreed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sophon_loader.decide import Rates
from sophon_loader.decide.dual import Problem, column_at
from sophon_loader.decide.filling import AS_FILES, FILLED_SHARE, LONGER, fill_of
from sophon_loader.decide.simplex import Vector
from tests.support.decide_tables import JOBS, facts_of, random_table, table_of

WIRE = np.array([1.0, 0.0, 0.0])


def seconds(problem: Problem, sums: Vector, filled: float, asked: Vector) -> float:
    """Of an epoch in which a share of the samples crosses as files, where they would have been asked for otherwise."""
    return problem.seconds(sums + filled * (problem.files - asked))


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("cached", [0.0, 0.1, 0.8])
def test_it_costs_no_more_than_was_agreed(job: str, cached: float) -> None:
    for seed in range(5):
        problem = replace(Problem.of(facts_of(random_table(200, seed=seed), JOBS[job])), cached=cached)
        column = column_at(problem, problem.seconds_per)
        filled = fill_of(problem, [column], np.ones(1), 0.9) * (0.9 - cached) if cached < 0.9 else 0.0
        most_s = max((1 + LONGER) * problem.seconds(column.sums), problem.seconds(column.asked))
        saved = 1 - column.asked[0] / problem.files[0]
        assert 0 <= filled <= (FILLED_SHARE * (1 + 1e-9) if saved > AS_FILES else 1.0)
        assert seconds(problem, column.sums, filled, column.asked) <= most_s * (1 + 1e-9)


def test_where_nearly_all_crosses_anyway_all_is_asked_for_as_files() -> None:
    table = table_of([[100_000, 98_500]] * 8, [[0.0, 0.0001]] * 8, [[0.01, 0.001]] * 8)
    problem = Problem.of(facts_of(table, Rates(1e6, 1e6, 8.0, 8.0)))
    assert fill_of(problem, [column_at(problem, WIRE)], np.ones(1), 0.5) == 1.0
    assert fill_of(problem, [column_at(problem, WIRE)], np.ones(1), 0.0) == 0.0, "without a cache"
    assert fill_of(replace(problem, cached=0.5), [column_at(problem, WIRE)], np.ones(1), 0.5) == 0.0, "all is there"


def test_thirty_epochs_take_less_than_seven_tenths_of_the_bytes() -> None:
    """Where the wire limits and parts take 0.43 of the files' bytes; the first epoch is 2 % longer
    than without a cache, and from the third on all are shorter."""
    table = table_of([[100_000, 43_000]] * 8, [[0.0, 0.0001]] * 8, [[0.003, 0.001]] * 8)
    problem = Problem.of(facts_of(table, Rates(1e6, 1e6, 8.0, 8.0)))
    without = column_at(problem, WIRE)
    cached, nbytes = 0.0, []
    for _ in range(30):
        now = replace(problem, cached=cached)
        column = column_at(now, WIRE)
        filled = fill_of(now, [column], np.ones(1), 1.0) * (1 - cached)
        nbytes.append(float(column.sums[0] + filled * (problem.files - column.asked)[0]))
        cached += filled
    assert nbytes[0] <= (1 + LONGER) * without.sums[0] * (1 + 1e-9)
    assert nbytes[1] <= 1.005 * without.sums[0] and max(nbytes[2:]) <= without.sums[0]
    assert sum(nbytes) < 0.7 * 30 * without.sums[0]
