"""decide/cost.py: the four terms, by hand."""

import math

import numpy as np
import pytest

from sophon_loader.decide import (
    Rates,
    Terms,
    epoch_terms,
    epoch_totals,
    moved,
    terms_without_offloading,
    verdict,
)
from sophon_loader.decide.facts import BLOCK
from sophon_loader.errors import PlanError
from tests.support.decide_tables import random_table, table_of

INF = math.inf


def test_terms_by_hand():
    table = table_of([[100, 40], [200, 60]], [[1, 4], [1, 6]], [[8, 2], [8, 2]])
    terms = epoch_terms(table, np.array([0, 1], np.uint8), Rates(4, 10, 5, 2))
    assert terms == Terms(gpu_s=0.5, wire_s=16.0, loader_cpu_s=2.0, agent_cpu_s=3.5)
    assert terms.seconds == 16.0
    assert terms.bottleneck == "wire"


def test_an_infinite_rate_is_never_the_bottleneck():
    table = table_of([[100]], [[1]], [[1]])
    assert epoch_terms(table, np.zeros(1, np.uint8), Rates(INF, INF, INF, INF)) == Terms(0, 0, 0, 0)
    assert verdict(Rates(INF, INF, 1, INF), table) == "loader-cpu"


@pytest.mark.parametrize(
    ("terms", "name"),
    [
        (Terms(1, 1, 1, 1), "gpu"),
        (Terms(0, 1, 1, 1), "loader-cpu"),
        (Terms(0, 1, 0, 1), "agent-cpu"),
        (Terms(0, 1, 0, 0), "wire"),
    ],
)
def test_of_equal_terms_the_wire_comes_last(terms, name):
    assert terms.bottleneck == name


def test_verdict_is_that_of_files_only():
    table = table_of([[100, 1]], [[0, 99]], [[1, 0]])
    assert verdict(Rates(1, 1, 1, 1), table) == "wire"
    assert verdict(Rates(1, 1000, 0.5, 1), table) == "loader-cpu"


@pytest.mark.parametrize("samples", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_totals_match_plain_indexing_at_block_edges(samples):
    table = random_table(samples, absent=0)
    chosen = np.random.default_rng(1).integers(0, 5, samples).astype(np.uint8)
    rows = np.arange(samples)
    totals = epoch_totals(table, chosen)
    assert totals.wire_bytes == pytest.approx(table.wire_bytes[rows, chosen].sum(dtype=np.float64), rel=1e-12)
    assert totals.agent_s == pytest.approx(table.agent_s[rows, chosen].sum(dtype=np.float64), rel=1e-12)
    assert totals.loader_s == pytest.approx(table.loader_s[rows, chosen].sum(dtype=np.float64), rel=1e-12)


def test_without_offloading_equals_choosing_files():
    table, rates = random_table(1000), Rates(1, 2, 3, 4)
    chosen = np.zeros(1000, np.uint8)
    files = epoch_terms(table, chosen, rates)
    assert terms_without_offloading(table, rates).seconds == pytest.approx(files.seconds)


def test_no_samples_take_no_time():
    table = table_of(np.zeros((0, 2)), np.zeros((0, 2)))
    assert epoch_terms(table, np.zeros(0, np.uint8), Rates(1, 1, 1, 1)).seconds == 0


def test_wrong_choices_are_refused():
    table = table_of([[100, INF]], [[0, 0]])
    with pytest.raises(PlanError, match=r"chosen must have shape \(1,\), got \(2,\)"):
        epoch_totals(table, np.zeros(2, np.uint8))
    with pytest.raises(PlanError, match="chosen must be below 2, got 2"):
        epoch_totals(table, np.array([2], np.uint8))
    with pytest.raises(PlanError, match="chosen must name choices that their samples have"):
        epoch_totals(table, np.array([1], np.uint8))


def test_moved():
    old = Rates(100, 100, 100, INF)
    assert moved(old, Rates(110, 90, 100, INF)) == ()
    assert moved(old, Rates(111, 89, 100, INF)) == ("gpu_samples_s", "wire_bytes_s")
    assert moved(old, Rates(100, 100, INF, 5)) == ("loader_cores", "agent_cores")
    assert moved(old, Rates(100, 100, 100.1, INF), tolerance=0) == ("loader_cores",)
    with pytest.raises(PlanError, match="tolerance must be >= 0, got nan"):
        moved(old, old, math.nan)
