"""decide/plan.py: prices, plans and the even spread."""

import math

import numpy as np
import pytest

from sophon_loader.decide import FILE, Choice, Plan, Prices, spread, uniform_plan
from sophon_loader.errors import PlanError
from tests.support.decide_tables import random_table

INF, NAN = math.inf, math.nan
PIXELS = Choice(2, "pixels")


def test_cheapest_by_hand():
    prices = Prices(wire=1.0, loader=10.0, agent=100.0)
    # 50 + 0 + 10, 20 + 10 + 10, 5 + 100 + 0
    assert prices.cheapest([50, 20, 5], [0, 0.1, 1], [1, 1, 0]) == 1


def test_absent_choices_are_never_the_cheapest_even_for_free():
    free = Prices(0, 0, 0)
    assert free.cheapest([INF, NAN, 3], [0, 0, 0], [0, 0, 0]) == 2
    assert free.cheapest_each([[INF, NAN, 3]], [[0, 0, 0]], [[0, 0, 0]]).tolist() == [2]
    dear = Prices(1, 1, 1)
    assert dear.cheapest([5, 1], [0, NAN], [0, 0]) == 0
    assert dear.cheapest_each([[5, 1]], [[0, NAN]], [[0, 0]]).tolist() == [0]


def test_no_usable_choice_is_refused():
    with pytest.raises(PlanError, match="wire_bytes must have a finite entry, got \\[inf\\]"):
        Prices(1, 1, 1).cheapest([INF], [0], [0])
    with pytest.raises(PlanError, match="in each row"):
        Prices(1, 1, 1).cheapest_each([[1], [INF]], [[0], [0]], [[0], [0]])


def test_ties_go_to_the_first_unless_planned_otherwise():
    prices = Prices(1, 1, 1)
    three = [100, 100, 100], [0, 0, 0], [0, 0, 0]
    assert prices.cheapest(*three) == 0
    assert prices.cheapest(*three, planned=2) == 2


def test_what_was_planned_is_kept_within_one_percent():
    prices = Prices(1, 0, 0)
    assert prices.cheapest([99.5, 100], [0, 0], [0, 0], planned=1) == 1
    assert prices.cheapest([98, 100], [0, 0], [0, 0], planned=1) == 0
    assert prices.cheapest([98, INF], [0, 0], [0, 0], planned=1) == 0


@pytest.mark.parametrize("planned", [False, True])
def test_one_and_many_agree(planned):
    table = random_table(300)
    kept = np.random.default_rng(0).integers(0, 5, 300).astype(np.uint8) if planned else None
    prices = Prices(1e-8, 0.3, 0.7)
    many = prices.cheapest_each(table.wire_bytes, table.agent_s, table.loader_s, planned=kept)
    assert many.dtype == np.uint8
    for i in range(300):
        row = table.wire_bytes[i], table.agent_s[i], table.loader_s[i]
        assert prices.cheapest(*row, planned=None if kept is None else int(kept[i])) == many[i]


@pytest.mark.parametrize("value", [-1.0, NAN, INF])
def test_prices_are_finite_and_not_negative(value):
    with pytest.raises(PlanError, match="agent must be >= 0 and finite"):
        Prices(1, 1, value)


def test_counts_and_choose():
    plan = Plan("x", (FILE, PIXELS, Choice(4, "array")), np.array([1, 0, 1], np.uint8), "because")
    assert plan.counts() == {FILE: 1, PIXELS: 2}
    assert [plan.choose(i) for i in range(3)] == [PIXELS, FILE, PIXELS]
    assert plan.samples == 3


def test_a_plan_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        uniform_plan("x", 3, FILE, "").chosen[0] = 1


def test_a_plan_points_into_its_choices():
    with pytest.raises(PlanError, match="chosen must be below 1, got 1"):
        Plan("x", (FILE,), np.array([1], np.uint8), "")
    with pytest.raises(PlanError, match="chosen must be uint8\\[N\\], got int64"):
        Plan("x", (FILE,), np.array([0], np.int64), "")
    with pytest.raises(PlanError, match="choices must be 1 to 256, got 0"):
        Plan("x", (), np.zeros(0, np.uint8), "")


def test_uniform_plan():
    assert uniform_plan("x", 4, PIXELS, "why").counts() == {PIXELS: 4}
    assert uniform_plan("x", 0, PIXELS, "why").counts() == {}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("samples", [0, 1, 2, 7, 1000])
def test_spread_marks_the_exact_count(samples, share):
    assert np.count_nonzero(spread(samples, share)) == round(share * samples)


def test_spread_is_even_nested_and_the_same_each_time():
    half, more = spread(10_000, 0.5), spread(10_000, 0.6)
    assert np.array_equal(half, spread(10_000, 0.5))
    assert (more | ~half).all()
    windows = np.convolve(half, np.ones(64), "valid")
    assert windows.min() >= 29 and windows.max() <= 35
    for period in range(2, 12):
        assert abs(half[::period].mean() - 0.5) < 0.02


def test_spread_checks_its_share():
    with pytest.raises(PlanError, match=r"share must be in \[0, 1\], got 1.1"):
        spread(3, 1.1)
