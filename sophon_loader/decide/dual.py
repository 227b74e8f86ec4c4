"""Prices that solve the planning problem's linear relaxation.

Every sample takes one of its choices; an epoch takes as long as its busiest resource. Relaxed (a sample may split over
choices) this is a linear programme of N * C variables but three coupling rows: wire, loader CPU and agent CPU. Its dual
is three prices. At given prices each sample takes its cheapest choice on its own (`sweep`, one pass over the table),
and what all samples then need together is a `Column`: three numbers. A master problem of a few rows mixes columns and
yields new prices, until no sweep improves the mix (Dantzig-Wolfe decomposition; Dantzig and Wolfe, Operations Research
8(1), 1960). A dozen or two are enough, and they are all that touches the samples.

Vectors over resources are float64[3] in the order wire, loader, agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.cost import chosen_sums
from sophon_loader.decide.facts import Facts, FloatTable
from sophon_loader.decide.simplex import Vector, maximise
from sophon_loader.errors import PlanError

FLOOR = 1e-12
"""Minimum share of the wire in the total price. At a wire price of zero an absent choice's infinite size would cost
NaN, not infinity; a share this small has no effect."""
MIN_PRICE = 1e-30
"""Minimum price of the wire relative to the largest one: float32 can still tell it from zero."""
_OF_FILES_HERE = np.array([0.0, 1.0, 0.0])
"""Share of each resource that a file takes if it need not cross."""
EQUAL = 1e-9
"""Relative difference below which two totals count as one."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A table, and the time that a unit of each resource costs.

    Costs have one row per choice, so that a sweep reads memory in order.

    Args:
        wire: float32[C, N], C-ordered, bytes; `inf` where a sample has no such choice.
        loader: float32[C, N], C-ordered, CPU seconds.
        agent: float32[C, N], C-ordered, CPU seconds.
        seconds_per: float64[3], epoch seconds per unit of each resource, 1 / rate.
        fixed_s: seconds of training steps, or of reading files from the agent's disk: no choice changes them.
        cached: share of the samples, chosen independently of their costs, whose files are on the loader's host.
    """

    wire: FloatTable
    loader: FloatTable
    agent: FloatTable
    seconds_per: Vector
    fixed_s: float
    cached: float = 0.0

    @classmethod
    def of(cls, facts: Facts) -> Problem:
        """Make the problem of some facts; shares the table's memory.

        Raises:
            PlanError: `facts` has no table.
        """
        table, rates = facts.table, facts.rates
        if table is None:
            raise PlanError("table must be given to plan by prices, got None; profile first")
        per = np.array([1 / rates.wire_bytes_s, 1 / rates.loader_cores, 1 / rates.agent_cores])
        fixed_s = facts.samples / min(rates.gpu_samples_s, rates.disk_samples_s)
        return cls(table.wire_bytes.T, table.loader_s.T, table.agent_s.T, per, fixed_s, facts.cached)

    @property
    def samples(self) -> int:
        """N."""
        return int(self.wire.shape[1])

    def sums(self, chosen: NDArray[np.uint8]) -> Vector:
        """Return float64[3]: the use of each resource under `chosen`, in bytes and CPU seconds."""
        return np.array(chosen_sums((self.wire, self.loader, self.agent), chosen))

    @cached_property
    def files(self) -> Vector:
        """Return float64[3]: the use of each resource if all samples cross as files."""
        return self.sums(np.zeros(self.samples, dtype=np.uint8))

    def seconds(self, sums: Vector) -> float:
        """Return the epoch's time for such sums."""
        return max(self.fixed_s, float((sums * self.seconds_per).max()))


@dataclass(frozen=True, eq=False)
class Column:
    """The use of each resource if every sample takes the choice that one sweep finds.

    Args:
        sums: float64[3], bytes and CPU seconds.
        prices: float64[3], the prices of the sweep; None for the plan without offloading.
        asked: float64[3], the sums if no file was in the cache.
        kept_here: True if samples with a cached file are made from it, and not requested.
    """

    sums: Vector
    prices: Vector | None
    asked: Vector
    kept_here: bool = True


@dataclass(frozen=True, eq=False)
class Mix:
    """The best mix of columns found.

    Args:
        shares: float64[K] over the first K columns, sum 1.
        lower: no plan is better than this.
        upper: the mix's own value.
    """

    shares: Vector
    lower: float
    upper: float


def file_column(problem: Problem) -> Column:
    """Return the column without offloading."""
    return _column(problem, problem.files, None)


def column_at(problem: Problem, prices: Vector) -> Column:
    """Return the column of a sweep.

    Args:
        problem: N samples.
        prices: float64[3], each >= 0; only their proportions matter.
    """
    return _column(problem, problem.sums(sweep(problem, prices)), prices)


def _column(problem: Problem, asked: Vector, prices: Vector | None) -> Column:
    """Return a column, given the use of all samples that are requested.

    Cached samples cost the same on average as others, so they have their share in all sums. A worker does not know what
    the agent would make of a sample. So either all cached samples are requested or none, by the lower mean cost. A
    cached file takes neither wire nor agent.

    Args:
        problem: N samples.
        asked: float64[3], the use if all samples are requested.
        prices: float64[3] of the sweep; None for the plan without offloading.
    """
    here = problem.files * _OF_FILES_HERE
    kept_here = prices is None or float(prices @ here) <= float(prices @ asked)
    sums = asked + problem.cached * (here - asked) if kept_here and problem.cached else asked
    return Column(sums, prices, asked, kept_here)


def sweep(problem: Problem, prices: Vector) -> NDArray[np.uint8]:
    """Let every sample take its cheapest choice (of equal ones, the first).

    Costs are float32: exact to 1e-7 and twice as fast as float64. Of two choices that close, either is fine.

    Args:
        problem: N samples.
        prices: float64[3], each >= 0; only their proportions matter.

    Returns:
        uint8[N], the choices.
    """
    wire, loader, agent = np.maximum(prices / (prices.max() or 1.0), [MIN_PRICE, 0, 0]).astype(np.float32)
    with np.errstate(over="ignore"):  # a cost past float32's range is infinite, and is never chosen
        bill = wire * problem.wire + loader * problem.loader + agent * problem.agent
    chosen: NDArray[np.uint8] = bill.argmin(axis=0).astype(np.uint8)
    return chosen


def least_time(problem: Problem, columns: list[Column], tolerance: float, most: int) -> Mix:
    """Mix columns so that the epoch is as short as possible.

    Args:
        problem: N samples.
        columns: at least one; new ones are appended.
        tolerance: stop when the bounds are this close, relative to the upper one.
        most: maximum number of sweeps.

    Returns:
        The mix; its bounds are in seconds.
    """
    search = _Search()
    for left in range(most, -1, -1):  # the master is solved once more than there are sweeps
        shares, weights, upper = _time_master(problem, columns)
        lower = max(problem.fixed_s, search.bound)
        if not left or upper - lower <= tolerance * upper:
            break
        tried = search.towards(weights)
        column = column_at(problem, _with_floor(tried * problem.seconds_per, columns[0].sums))
        columns.append(column)
        terms = float(tried @ (column.sums * problem.seconds_per))
        search.learn(tried, bound=terms + (1 - float(tried.sum())) * problem.fixed_s)
    return Mix(_padded(shares, columns), min(lower, upper), upper)


def _time_master(problem: Problem, columns: list[Column]) -> tuple[Vector, Vector, float]:
    """The best mix of `columns` as a matrix game: columns against terms.

    Minimising v subject to M x <= v and sum x = 1 is, for M > 0 and y = x / v, maximising sum y subject to
    M y <= 1.

    Returns:
        Shares of the columns; weights of the three terms, whose sum falls short of 1 by the GPU's; the mix's
        seconds.
    """
    terms = np.array([column.sums * problem.seconds_per for column in columns]).T
    matrix = np.vstack([terms, np.full(len(columns), problem.fixed_s)])
    scale = float(matrix[:, 0].max()) or 1.0
    # A constant added to a whole game moves its value only, and keeps a column of zeros bounded.
    game = matrix / scale + 1.0
    best = maximise(np.ones(len(columns)), game, np.ones(4))
    shares, weights = best.x / best.x.sum(), best.duals / best.duals.sum()
    return shares, weights[:3], float((matrix @ shares).max())


def least_traffic(
    problem: Problem,
    columns: list[Column],
    start: Vector,
    goal: Vector,
    budget_s: float,
    tolerance: float,
    most: int,
) -> Mix:
    """Mix columns so that `goal . sums` is least while each term stays within `budget_s`.

    Args:
        problem: N samples.
        columns: new ones are appended.
        start: shares over `columns` whose mix is within the budget.
        goal: float64[3], the worth of a unit of each resource, scaled so that `goal . sums` is about 1.
        budget_s: seconds > 0.
        tolerance: stop when the bounds are this close.
        most: maximum number of sweeps.

    Returns:
        The mix; its bounds are in units of the goal.
    """
    origin = start @ np.array([column.sums for column in columns])
    per = problem.seconds_per / budget_s
    limits = np.append(np.maximum(1 - origin * per, 0.0), 1.0)
    search = _Search()
    for left in range(most, -1, -1):
        # Sums relative to the start, so that x = 0 is feasible: it stands for the start itself.
        steps = np.array([column.sums for column in columns]).T - origin[:, None]
        rows = np.vstack([steps * per[:, None], np.ones(len(columns))])
        master = maximise(-goal @ steps, rows, limits)
        upper = float(goal @ origin) - master.value
        if not left or upper - search.bound <= tolerance:
            break
        tried = search.towards(master.duals[:3])
        prices = goal + tried * per
        column = column_at(problem, _with_floor(prices, columns[0].sums))
        columns.append(column)
        search.learn(tried, bound=float(prices @ column.sums) - float(tried @ (per > 0)))
    shares = _padded(master.x, columns)
    shares[: len(start)] += max(0.0, 1 - shares.sum()) * start
    return Mix(shares, min(search.bound, upper), upper)


class _Search:
    """Chooses the weights of the next sweep, and keeps the best lower bound so far.

    The weights of a master that knows few columns oscillate. So the next ones are half way between its own and the best
    so far (Wentges, International Transactions in Operational Research 4(2), 1997). The best weights are those with the
    highest bound proved by a sweep, even if a higher bound is known from elsewhere. If the centre waited for a higher
    one, the search could stop making progress. Half way between, prices also avoid points at which samples have two
    choices of equal cost. The master's prices are often such points, and an agent would choose differently there than
    the sweep did.

    Attributes:
        bound: the highest lower bound that a sweep has proved.
    """

    def __init__(self) -> None:
        self._centre: Vector | None = None  # float64[3], the best weights so far
        self.bound = -np.inf

    def towards(self, weights: Vector) -> Vector:
        """Return the weights to sweep at, given the master's."""
        return weights if self._centre is None else 0.5 * (weights + self._centre)

    def learn(self, tried: Vector, bound: float) -> None:
        """Record the bound that a sweep has proved.

        Args:
            tried: float64[3], the weights of the sweep.
            bound: no plan is better than this.
        """
        if bound > self.bound:
            self._centre = tried
            self.bound = bound


def _padded(shares: Vector, columns: list[Column]) -> Vector:
    return np.append(shares, np.zeros(len(columns) - len(shares)))


def _with_floor(prices: Vector, sums: Vector) -> Vector:
    """Return prices with a wire price that is not zero (see FLOOR); `sums` set the scale."""
    bill = float(prices @ sums) or 1.0
    floor = FLOOR * bill / (float(sums[0]) or 1.0)
    return np.array([max(prices[0], floor), prices[1], prices[2]])
