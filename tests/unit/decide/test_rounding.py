"""decide/rounding.py: proportions, and repair of what they leave."""

import numpy as np
import pytest

from sophon_loader.decide.dual import Problem, column_at, file_column
from sophon_loader.decide.rounding import mixed, repaired
from tests.support.decide_tables import JOBS, facts_of, random_table, table_of


def test_mixed_comes_out_in_proportion():
    problem = Problem.of(facts_of(random_table(5000, absent=0)))
    columns = [file_column(problem), *(column_at(problem, np.eye(3)[k]) for k in (0, 1))]
    shares = np.array([0.2, 0.5, 0.3])
    sums = problem.sums(mixed(problem, columns, shares))
    np.testing.assert_allclose(sums, shares @ np.array([column.sums for column in columns]), rtol=3e-3)


def test_one_column_is_taken_as_it_is():
    problem = Problem.of(facts_of(random_table(50)))
    columns = [file_column(problem), column_at(problem, np.array([1.0, 0, 0]))]
    assert np.array_equal(mixed(problem, columns, np.array([0.0, 1.0])), columns[1].chosen(problem))


def test_equal_samples_are_split_by_share():
    problem = Problem.of(facts_of(table_of([[100, 50]] * 1000, [[0, 1]] * 1000)))
    columns = [file_column(problem), column_at(problem, np.array([1.0, 0, 0]))]
    assert np.count_nonzero(mixed(problem, columns, np.array([0.25, 0.75]))) == pytest.approx(750, abs=2)


@pytest.mark.parametrize("samples", [1, 2, 100, 40_000])
def test_repair_never_makes_worse(samples):
    problem = Problem.of(facts_of(random_table(samples), JOBS["tight"]))
    start = np.zeros(samples, np.uint8)
    goal = np.array([1 / problem.sums(start)[0], 0, 0])
    budget_s = 0.9 * problem.seconds(problem.sums(start))
    chosen = repaired(problem, start, np.array([1e-8, 0.5, 0.5]), goal, budget_s)
    assert not start.any()
    assert problem.seconds(problem.sums(chosen)) <= problem.seconds(problem.sums(start))


def test_repair_finds_the_pair_that_no_single_change_reaches():
    # Agent full, wire over budget: sample 0 must come back from the agent so that sample 1 can go there.
    problem = Problem.of(facts_of(table_of([[30, 20], [50, 20]], [[0, 10], [0, 10]]), JOBS["tight"]))
    problem = Problem(problem.wire, problem.loader, problem.agent, np.array([1.0, 1, 5]), 0.0)
    goal = np.array([0.01, 0, 0])
    chosen = repaired(problem, np.array([1, 0], np.uint8), np.array([1.0, 0, 1]), goal, 50.0)
    assert chosen.tolist() == [0, 1]


def test_no_sample_is_changed_twice_at_once():
    # Counted twice, sample 0's saving of 40 looks like 80, and sample 1's change would then never look better.
    problem = Problem.of(facts_of(table_of([[100, 60], [100, 90]], [[0, 0]] * 2)))
    chosen = repaired(problem, np.zeros(2, np.uint8), np.array([1.0, 0, 0]), np.array([0.01, 0, 0]), 1e9)
    assert chosen.tolist() == [1, 1]
