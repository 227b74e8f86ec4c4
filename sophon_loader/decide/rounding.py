"""From a mix of plans to one plan.

The linear relaxation may split a sample over several choices. `mixed` gives each sample one of the mixed
plans, in the mix's proportions; `repaired` then changes single samples, and pairs of them, while that helps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.dual import EQUAL, Column, Problem
from sophon_loader.decide.plan import golden_places
from sophon_loader.decide.simplex import Vector

MIN_SHARE = 1e-9
"""A column of a smaller share counts as not mixed; the shares come from a simplex exact to about 1e-11."""
MAX_MOVES = 160
"""Moves that are tried in pairs: 160**2 pairs of three float64 sums (600 KB) fit the L2 cache."""
POOL = 16
"""The moves are taken from this many times as many cheap ones."""
MAX_STEPS = 64
"""Moves or pairs of moves that are made at most; most repairs need a few."""
MAX_SAMPLES = 1 << 14
"""Samples that are looked at for moves; of more, an even share of them."""


def mixed(problem: Problem, columns: list[Column], shares: Vector) -> NDArray[np.uint8]:
    """One plan in which each column rules its share of the samples that the columns disagree on.

    The samples are shared out evenly along the files' sizes, separately for each way of disagreeing: a column then
    gets its share of small and of large ones, and the sums come out as mixed to within a few samples' worth.

    Args:
        problem: N samples.
        columns: K columns.
        shares: float64[K], sum 1.

    Returns:
        uint8[N], the plan.
    """
    active = [int(k) for k in np.argsort(-shares, kind="stable") if shares[k] > MIN_SHARE]
    plans = [columns[k].chosen(problem) for k in active]
    differ = np.zeros(problem.samples, dtype=np.bool_)
    for plan in plans[1:]:
        differ |= plan != plans[0]
    where = np.flatnonzero(differ).astype(np.uint32)
    # By what the first plan says, then the second, and so on, and then by the file's size (lexsort's first key).
    ways = [plan[where] for plan in plans]
    where = where[np.lexsort((problem.wire[0, where], *reversed(ways)))]
    places = golden_places(len(where))
    edges = np.cumsum(shares[active]) / shares[active].sum() * 2.0**32
    chosen = plans[0]
    for low, high, plan in zip(edges[:-1], edges[1:], plans[1:], strict=True):
        mine = where[(places >= low) & (places < high)]
        chosen[mine] = plan[mine]
    return chosen


def repaired(
    problem: Problem, chosen: NDArray[np.uint8], prices: Vector, goal: Vector, budget_s: float
) -> NDArray[np.uint8]:
    """Change samples one or two at a time while that brings the plan into the budget or, there, the goal down.

    Those moves are tried that cost least at `prices`: near an optimum these are the ones that can pay.

    Args:
        problem: N samples.
        chosen: uint8[N], the plan to start from; left as it is.
        prices: float64[3].
        goal: float64[3], what a unit of each resource is worth, scaled so that `goal . sums` is about 1.
        budget_s: what no term should exceed.

    Returns:
        uint8[N], no worse than `chosen`: less over the budget or, equally far over, no larger in the goal.
    """
    chosen = chosen.copy()
    step = max(1, problem.samples // MAX_SAMPLES)
    near = np.arange(0, problem.samples, step)
    costs = np.stack([problem.wire[:, ::step], problem.loader[:, ::step], problem.agent[:, ::step]]).astype(np.float64)
    sums = problem.sums(chosen)
    now = float(_badness(problem, sums, goal, budget_s))
    for _ in range(MAX_STEPS):
        who, what, deltas = _cheap_moves(costs, chosen[near], prices, int((sums * problem.seconds_per).argmax()))
        if not len(who):
            break
        single = _badness(problem, sums + deltas, goal, budget_s)
        pairs = _badness(problem, sums + deltas[:, None] + deltas[None, :], goal, budget_s)
        pairs[who[:, None] == who[None, :]] = np.inf
        first = second = int(single.argmin())
        if pairs.min() < single.min():
            first, second = divmod(int(pairs.argmin()), len(who))
        after = min(float(single.min()), float(pairs.min()))
        if not after < now - EQUAL * (1 + abs(now)):
            break
        for move in {first, second}:
            chosen[near[who[move]]] = what[move]
            sums = sums + deltas[move]
        now = after
    return chosen


def _badness(problem: Problem, sums: Vector, goal: Vector, budget_s: float) -> Vector:
    """The goal, plus what no goal outweighs for being over the budget; for sums of shape [..., 3]."""
    over = np.maximum((sums * problem.seconds_per).max(axis=-1) / budget_s - 1, 0.0)
    badness: Vector = sums @ goal + np.where(over > EQUAL, 1e6 * over, 0.0)
    return badness


def _cheap_moves(
    costs: Vector, chosen: NDArray[np.uint8], prices: Vector, worst: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], Vector]:
    """The moves to other choices that add least to the bill.

    Args:
        costs: float64[3, C, n].
        chosen: uint8[n], the choices held.
        prices: float64[3].
        worst: the resource with the largest term; moves of all kinds are wanted there.

    Returns:
        intp[M] samples, intp[M] their new choices, float64[M, 3] what the sums change by.
    """
    samples = np.arange(len(chosen))
    deltas = costs - costs[:, chosen, samples][:, None, :]
    with np.errstate(invalid="ignore"):  # 0 * inf: an absent choice at a wire price of zero
        bill = np.tensordot(prices, deltas, axes=1)
    bill[~np.isfinite(costs[0])] = np.inf
    bill[chosen, samples] = np.inf
    flat = bill.ravel()
    count = min(POOL * MAX_MOVES, int(np.count_nonzero(flat < np.inf)))
    pool = np.argpartition(flat, min(count, len(flat) - 1))[:count]
    what, who = np.divmod(_spread_out(pool, flat, deltas[worst].ravel()), len(chosen))
    return who, what, deltas[:, what, who].T


def _spread_out(pool: NDArray[np.intp], bill: Vector, change: Vector) -> NDArray[np.intp]:
    """At most MAX_MOVES of `pool`: the cheapest half, and as many spread evenly over what they change.

    The cheapest alone may all be of one kind (equal samples, or choices a constant apart) and pull one way.
    """
    if len(pool) <= MAX_MOVES:
        return pool
    ordered = pool[np.argsort(bill[pool], kind="stable")]
    cheapest, rest = np.split(ordered, [MAX_MOVES // 2])
    rest = rest[np.argsort(change[rest], kind="stable")]
    step = -(-len(rest) // (MAX_MOVES // 2))
    return np.concatenate([cheapest, rest[step // 2 :: step]])
