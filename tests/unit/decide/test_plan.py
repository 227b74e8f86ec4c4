"""decide/plan.py: plans and the even spread."""

from __future__ import annotations

import numpy as np
import pytest

from sophon_loader.decide import FILE, Choice, Plan, spread, uniform_plan
from sophon_loader.errors import PlanError

PIXELS = Choice(2, "pixels")


def test_counts() -> None:
    plan = Plan("x", (FILE, PIXELS, Choice(4, "array")), np.array([1, 0, 1], np.uint8), "because")
    assert plan.counts() == {FILE: 1, PIXELS: 2}
    assert plan.samples == 3


def test_a_plan_is_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        uniform_plan("x", 3, FILE, "").chosen[0] = 1


def test_a_plan_points_into_its_choices() -> None:
    with pytest.raises(PlanError, match="chosen must be below 1, got 1"):
        Plan("x", (FILE,), np.array([1], np.uint8), "")
    with pytest.raises(PlanError, match="chosen must be uint8\\[N\\], got int64"):
        Plan("x", (FILE,), np.array([0], np.int64), "")
    with pytest.raises(PlanError, match="choices must be 1 to 256, got 0"):
        Plan("x", (), np.zeros(0, np.uint8), "")


def test_uniform_plan() -> None:
    assert uniform_plan("x", 4, PIXELS, "why").counts() == {PIXELS: 4}
    assert uniform_plan("x", 0, PIXELS, "why").counts() == {}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("samples", [0, 1, 2, 7, 1000])
def test_spread_marks_the_exact_count(samples: int, share: float) -> None:
    assert np.count_nonzero(spread(samples, share)) == round(share * samples)


def test_spread_is_even_nested_and_the_same_each_time() -> None:
    half, more = spread(10_000, 0.5), spread(10_000, 0.6)
    assert np.array_equal(half, spread(10_000, 0.5))
    assert (more | ~half).all()
    windows = np.convolve(half, np.ones(64), "valid")
    assert windows.min() >= 29 and windows.max() <= 35
    for period in range(2, 12):
        assert abs(half[::period].mean() - 0.5) < 0.02


def test_spread_checks_its_share() -> None:
    with pytest.raises(PlanError, match=r"share must be in \[0, 1\], got 1.1"):
        spread(3, 1.1)
