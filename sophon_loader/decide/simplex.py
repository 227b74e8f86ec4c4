"""A linear programme of a few rows, solved by the simplex method on a dense tableau.

The master problems of `decide/dual.py` have at most five rows and some dozens of columns. scipy could solve them, but
it is a heavy import for a tableau that fits a screen. The tests compare the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

TINY = 1e-11
"""Bound below which a reduced cost or a pivot counts as zero: about 1e5 times float64's rounding, since callers scale
their entries to about 1."""
MAX_PIVOTS = 2000
"""Maximum number of pivots, for a programme that does not end. None has been seen, and Bland's rule allows none except
by rounding."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """A solution.

    Args:
        x: float64[K], the amount of each column.
        duals: float64[R], the worth of a unit of each row's limit.
        value: gain . x.
    """

    x: Vector
    duals: Vector
    value: float


def maximise(gain: Vector, rows: Vector, limits: Vector) -> Optimum:
    """Maximise `gain . x` subject to `rows @ x <= limits` and `x >= 0`.

    Bland's rule picks the pivots, so that degenerate problems end too. Stopping at `MAX_PIVOTS` (never seen)
    would still leave a feasible `x`, only not the best one.

    Args:
        gain: float64[K].
        rows: float64[R, K].
        limits: float64[R], each >= 0, so that x = 0 is feasible.

    Returns:
        The best x, and the duals of the rows.

    Raises:
        ArithmeticError: the problem has no largest value.
    """
    height, width = rows.shape
    tableau = np.zeros((height + 1, width + height + 1))
    tableau[:height, :width] = rows
    tableau[:height, width:-1] = np.eye(height)
    tableau[:height, -1] = limits
    tableau[height, :width] = -gain
    basis = list(range(width, width + height))
    for _ in range(MAX_PIVOTS):
        entering = np.flatnonzero(tableau[height, :-1] < -TINY)
        if not entering.size:
            break
        _pivot(tableau, basis, int(entering[0]))
    x = np.zeros(width + height)
    x[basis] = tableau[:height, -1]
    return Optimum(
        np.maximum(x[:width], 0.0),
        np.maximum(tableau[height, width:-1], 0.0),
        float(tableau[height, -1]),
    )


def _pivot(tableau: Vector, basis: list[int], entering: int) -> None:
    column = tableau[:-1, entering]
    candidates = np.flatnonzero(column > TINY)
    if not candidates.size:
        raise ArithmeticError("a linear programme without a largest value")
    ratios = tableau[candidates, -1] / column[candidates]
    tied = candidates[ratios <= ratios.min() + TINY]
    leaving = int(min(tied, key=lambda row: basis[row]))
    tableau[leaving] /= tableau[leaving, entering]
    factors = tableau[:, entering].copy()
    factors[leaving] = 0.0
    tableau -= np.outer(factors, tableau[leaving])
    basis[leaving] = entering
