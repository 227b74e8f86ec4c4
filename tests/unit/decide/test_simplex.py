"""decide/simplex.py against scipy."""

import numpy as np
import pytest
from scipy.optimize import linprog

from sophon_loader.decide.simplex import maximise


@pytest.mark.parametrize("seed", range(60))
def test_matches_highs_with_its_duals(seed):
    rng = np.random.default_rng(seed)
    height, width = rng.integers(1, 6), rng.integers(1, 40)
    gain = rng.normal(size=width)
    rows = np.vstack([rng.normal(size=(height, width)).round(1), np.ones(width)])
    limits = np.append(rng.choice([0.0, 0.5, 1.0], height), 1.0)  # zeros: degenerate vertices
    ours = maximise(gain, rows, limits)
    theirs = linprog(-gain, rows, limits, method="highs")
    assert ours.value == pytest.approx(-theirs.fun, abs=1e-9)
    assert gain @ ours.x == pytest.approx(ours.value, abs=1e-9)
    assert (rows @ ours.x <= limits + 1e-9).all() and (ours.x >= 0).all()
    assert limits @ ours.duals == pytest.approx(ours.value, abs=1e-9)
    assert (ours.duals @ rows >= gain - 1e-9).all()


def test_beales_example_does_not_cycle():
    gain = np.array([0.75, -150, 0.02, -6])
    rows = np.array([[0.25, -60, -0.04, 9], [0.5, -90, -0.02, 3], [0, 0, 1, 0]])
    assert maximise(gain, rows, np.array([0.0, 0.0, 1.0])).value == pytest.approx(0.05)


def test_without_a_largest_value():
    with pytest.raises(ArithmeticError, match="without a largest value"):
        maximise(np.ones(1), -np.ones((1, 1)), np.ones(1))
