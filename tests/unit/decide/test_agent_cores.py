"""decide/agent_cores.py against HiGHS: the epoch's time over numbers of cores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sophon_loader.decide import ChoiceTable, Rates
from sophon_loader.decide.agent_cores import NEARLY, wanted_agent_cores
from sophon_loader.errors import PlanError
from tests.support.decide_tables import JOBS, facts_of, linear_optimum, random_table, table_of

JOBS_TRIED = JOBS | {
    "narrow wire": Rates(1e6, 5e6, 8, 2),
    "slow loader": Rates(1e6, 1e9, 0.5, 4),
    "loader and wire": Rates(1e6, 30e6, 0.7, 4),
    "gpu at once": Rates(100, 60e6, 8, 2),
    "disk": Rates(1e6, 60e6, 8, 2, disk_samples_s=700),
}


def _seconds(table: ChoiceTable, rates: Rates, cores: float) -> float:
    """Of the best plan with so many agent cores."""
    gpu = min(rates.gpu_samples_s, rates.disk_samples_s)
    return linear_optimum(table, replace(rates, gpu_samples_s=gpu, agent_cores=cores))


def _without(table: ChoiceTable, rates: Rates) -> float:
    """With no agent: all samples are files."""
    gpu = min(rates.gpu_samples_s, rates.disk_samples_s)
    wire, loader = (float(values[:, 0].sum(dtype=np.float64)) for values in (table.wire_bytes, table.loader_s))
    return max(wire / rates.wire_bytes_s, loader / rates.loader_cores, table.samples / gpu)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("job", JOBS_TRIED)
def test_no_fewer_cores_are_enough(job: str, seed: int) -> None:
    table, rates = random_table(200, seed=seed), JOBS_TRIED[job]
    most_s = NEARLY * _seconds(table, rates, np.inf)
    cores = wanted_agent_cores(facts_of(table, rates))
    if _without(table, rates) <= most_s:
        assert cores == 0.0
        return
    assert _seconds(table, rates, cores * 1.001) <= most_s
    for share in (0.99, 0.7, 0.3):
        assert _seconds(table, rates, cores * share) > most_s


@pytest.mark.parametrize("job", ["narrow wire", "slow loader", "gpu after offloading"])
def test_the_first_of_a_row_of_numbers_that_is_enough(job: str) -> None:
    table, rates = random_table(100, seed=5), JOBS_TRIED[job]
    most_s = NEARLY * _seconds(table, rates, np.inf)
    numbers = np.geomspace(0.01, 100, 60)
    first = next(n for n, number in enumerate(numbers) if _seconds(table, rates, float(number)) <= most_s)
    assert numbers[first - 1] < wanted_agent_cores(facts_of(table, rates)) <= numbers[first]


def test_how_many_there_are_does_not_matter() -> None:
    table = random_table(200)
    found = {wanted_agent_cores(facts_of(table, replace(JOBS["wire"], agent_cores=n))) for n in (1e-3, 2, 500, np.inf)}
    assert len(found) == 1 and found.pop() > 0


def test_where_nothing_is_gained() -> None:
    """Each way but the file takes more of the wire, which is all that limits."""
    table = table_of([[1e5, 2e5]] * 8, [[0.0, 1e-3]] * 8, [[1e-3, 0.0]] * 8)
    assert wanted_agent_cores(facts_of(table, Rates(1e6, 1e6, 8, 2))) == 0.0
    only_files = table_of([[1e5]] * 8, [[1e-3]] * 8, [[1e-3]] * 8)
    assert wanted_agent_cores(facts_of(only_files, Rates(1e6, 1e6, 8, 2))) == 0.0


def test_files_that_only_agents_have_take_cores_of_theirs() -> None:
    """10 samples/s cross, of which each takes 1 ms there."""
    table = table_of([[1e5, 2e5]] * 8, [[1e-3, 2e-3]] * 8, [[1e-3, 0.0]] * 8)
    cores = wanted_agent_cores(facts_of(table, Rates(1e6, 1e6, 8, 2)), files_from_agents=True)
    assert cores == pytest.approx(10 * 1e-3 / NEARLY, rel=1e-3)


def test_by_hand() -> None:
    """The GPU takes 100 samples/s; the wire brings 50 files/s, or 200 values of 10 ms each.

    In 1.05 s per 100 samples, of x values and 100 - x files: x / 200 + (100 - x) / 50 = 1.05, so x = 63.3.
    """
    table = table_of([[4e4, 1e4]] * 100, [[0.0, 0.01]] * 100, [[1e-3, 0.0]] * 100)
    cores = wanted_agent_cores(facts_of(table, Rates(100, 2e6, 8, 0.1)))
    assert cores == pytest.approx((2 - 1.05) / 1.5 * 100 * 0.01 / 1.05, rel=1e-3)


def test_where_all_files_are_cached_only_the_loader_s_work_counts() -> None:
    facts = facts_of(random_table(200), JOBS_TRIED["narrow wire"])
    assert wanted_agent_cores(facts) > 0 == wanted_agent_cores(replace(facts, cached=1.0))


def test_time_that_nothing_limits() -> None:
    table = table_of([[1e5, 0.0]] * 8, [[0.0, 1e-3]] * 8)
    assert 0 < wanted_agent_cores(facts_of(table, Rates(np.inf, 1e6, 8, 2))) < np.inf
    with pytest.raises(PlanError, match="table must be given"):
        wanted_agent_cores(replace(facts_of(table), table=None))
