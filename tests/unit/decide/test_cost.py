"""decide/cost.py: the four terms, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sophon_loader.decide import (
    FILE,
    Choice,
    ChoiceTable,
    EpochTime,
    Rates,
    epoch_time,
    epoch_work,
    moved,
    time_without_offloading,
)
from sophon_loader.decide.facts import BLOCK
from sophon_loader.errors import PlanError
from tests.support.decide_tables import random_table, table_of

INF = math.inf


def test_an_epoch_by_hand() -> None:
    table = table_of([[100, 40], [200, 60]], [[1, 4], [1, 6]], [[8, 2], [8, 2]])
    terms = epoch_time(table, np.array([0, 1], np.uint8), Rates(4, 10, 5, 2, 8))
    assert terms == EpochTime(gpu_s=0.5, wire_s=16.0, loader_cpu_s=2.0, agent_cpu_s=3.5, disk_s=0.25)
    assert terms.seconds == 16.0
    assert terms.bottleneck == "wire"
    slow_disk = epoch_time(table, np.array([0, 1], np.uint8), Rates(4, 10, 5, 2, 0.1))
    assert slow_disk.bottleneck == "agent-disk" and slow_disk.seconds == slow_disk.fixed_s == 20.0


def test_an_infinite_rate_is_never_the_bottleneck() -> None:
    table = table_of([[100]], [[1]], [[1]])
    assert epoch_time(table, np.zeros(1, np.uint8), Rates(INF, INF, INF, INF)) == EpochTime(0, 0, 0, 0)
    assert time_without_offloading(table, Rates(INF, INF, 1, INF)).bottleneck == "loader-cpu"


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        (EpochTime(1, 1, 1, 1, 1), "gpu"),
        (EpochTime(0, 1, 1, 1, 1), "agent-disk"),
        (EpochTime(0, 1, 1, 1), "loader-cpu"),
        (EpochTime(0, 1, 0, 1), "agent-cpu"),
        (EpochTime(0, 1, 0, 0), "wire"),
    ],
)
def test_of_equal_terms_the_wire_comes_last(terms: EpochTime, name: str) -> None:
    assert terms.bottleneck == name


@pytest.mark.parametrize("samples", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_the_work_matches_plain_indexing_at_block_edges(samples: int) -> None:
    table = random_table(samples, absent=0)
    chosen = np.random.default_rng(1).integers(0, 5, samples).astype(np.uint8)
    rows = np.arange(samples)
    work = epoch_work(table, chosen)
    assert work.wire_bytes == pytest.approx(table.wire_bytes[rows, chosen].sum(dtype=np.float64), rel=1e-12)
    assert work.agent_s == pytest.approx(table.agent_s[rows, chosen].sum(dtype=np.float64), rel=1e-12)
    assert work.loader_s == pytest.approx(table.loader_s[rows, chosen].sum(dtype=np.float64), rel=1e-12)


def test_without_offloading_equals_choosing_files() -> None:
    table, rates = random_table(1000), Rates(1, 2, 3, 4)
    files = epoch_time(table, np.zeros(1000, np.uint8), rates)
    assert vars(time_without_offloading(table, rates)) == pytest.approx(vars(files))


def test_the_same_work_at_other_rates() -> None:
    table, chosen = random_table(100, absent=0), np.full(100, 2, np.uint8)
    old, new = Rates(4, 10, 5, 2, 8), Rates(8, 1, 5, 3, 5)
    assert vars(epoch_time(table, chosen, old).at(old, new)) == pytest.approx(vars(epoch_time(table, chosen, new)))
    free = Rates(INF, INF, 5, 2)
    after = epoch_time(table, chosen, free).at(free, new)
    assert (after.gpu_s, after.wire_s, after.disk_s) == (0, 0, 0), "how much work it was is not known"


def test_no_samples_take_no_time() -> None:
    table = ChoiceTable((FILE, Choice(1, "pixels")), *np.zeros((3, 0, 2), np.float32))
    assert epoch_time(table, np.zeros(0, np.uint8), Rates(1, 1, 1, 1)).seconds == 0


def test_wrong_choices_are_refused() -> None:
    table = table_of([[100, INF]], [[0, 0]])
    with pytest.raises(PlanError, match=r"chosen must have shape \(1,\), got \(2,\)"):
        epoch_work(table, np.zeros(2, np.uint8))
    with pytest.raises(PlanError, match="chosen must be below 2, got 2"):
        epoch_work(table, np.array([2], np.uint8))
    with pytest.raises(PlanError, match="chosen must name choices that their samples have"):
        epoch_work(table, np.array([1], np.uint8))


def test_moved() -> None:
    old = Rates(100, 100, 100, INF)
    assert moved(old, Rates(110, 90, 100, INF)) == ()
    assert moved(old, Rates(111, 89, 100, INF)) == ("gpu_samples_s", "wire_bytes_s")
    assert moved(old, Rates(100, 100, INF, 5)) == ("loader_cores", "agent_cores")
    assert moved(old, Rates(100, 100, 100.1, INF), tolerance=0) == ("loader_cores",)
    with pytest.raises(PlanError, match="tolerance must be >= 0, got nan"):
        moved(old, old, math.nan)
