"""The default policy: the shortest epoch, then the least traffic, by three prices.

The rule, with `slack` = 1 % and T the cost model's epoch seconds (`decide/cost.py`):

1. T* is the shortest time of any plan. If no offloading comes within the slack of T*, nothing is offloaded: no
   wire, no CPU and no trust is spent on a gain that the model cannot promise.
2. Else, of all plans within the slack of T*, the one with the least traffic, and then the least agent CPU, and
   then the least loader CPU. "Then" is an exchange rate and not absolute, or one byte would outweigh an hour of
   CPU: agent CPU of one average choice for every sample counts as 0.1 % of the files' bytes, loader CPU as
   0.001 %.

Both steps are linear programmes solved through their dual prices (`decide/dual.py`), on even samples of the
data set first, which leaves a few passes over all of it; `decide/rounding.py` makes the result whole. By duality
T* has a proven lower bound: a plan within the slack of the bound is within the slack of every other policy's plan.
Rounding can miss that where a handful of samples, or a few giant ones, make up the epoch; the other policies' plans are
then looked at too.

SOPHON's greedy is the case of two choices per sample and one price.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.cost import EpochTime, EpochWork, epoch_time, time_without_offloading
from sophon_loader.decide.dual import EQUAL, Column, Mix, Problem, column_at, file_column, least_time, least_traffic
from sophon_loader.decide.facts import FILE, ChoiceTable, Facts
from sophon_loader.decide.plan import Plan, Prices
from sophon_loader.decide.policies.common import measured, same_for_all, unprofiled
from sophon_loader.decide.policies.fixed import AllOff, ResizeOff
from sophon_loader.decide.policies.sophon import Sophon
from sophon_loader.decide.rounding import MIN_SHARE, mixed, repaired
from sophon_loader.decide.simplex import Vector
from sophon_loader.decide.tariff import FILES, Part, Tariff, Traffic
from sophon_loader.errors import PlanError

LEVELS = (1 << 14, 1 << 17)
"""Sizes of the even samples that find the first prices; each starts from the prices of the one before."""
FINE_GAP = 1e-6
"""Relative gap between the bounds at which to stop, on a sample of the data set or on a whole that is as small."""
COARSE_GAP = 5e-5
"""The same on a larger whole, where each further sweep costs most."""
MAX_FINE_SWEEPS = 200
"""Sweeps on a sample; a dozen or two are usual."""
MAX_COARSE_SWEEPS = 20
"""Sweeps on a larger whole, which starts from good prices."""
INSTANT = 1e-6
"""Share of the time without offloading below which all epochs count as equally short."""
REPAIRED = 1 << 14
"""Samples up to which single ones are worth a look after rounding."""
LEFT_TO_ROUNDING = 0.05
"""Share of the slack that the linear programme leaves unused, for what is lost in rounding."""
GB = 1e9
NO_TRAFFIC = Traffic(weight=0.0)
MIN_SAVED = 0.05
"""Share of the files' bytes that must be saved for the agent to be asked where nothing else is to be gained."""
LONGER = (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0)
"""Times the shortest epoch that are looked at where traffic has a price; the sum of the two is convex in it."""
LEAST_PART = 0.01
"""Share of the requests below which a part of a tariff is left out."""
AGENT_EXCHANGE = 1e-3
"""What agent CPU of one average choice for every sample counts as, as a share of the files' bytes."""
LOADER_EXCHANGE = 1e-5
"""What loader CPU of one average choice for every sample counts as, likewise."""


@dataclass(frozen=True, eq=False)
class _Solution:
    """Both linear programmes, solved.

    Args:
        columns: what `time` and `traffic` mix.
        time: the mix of the shortest epoch.
        traffic: the mix of the least traffic within the budget.
        budget_s: seconds that the epoch may take.
    """

    columns: list[Column]
    time: Mix
    traffic: Mix
    budget_s: float


class Auto:
    """Offload what shortens the epoch most, and among equally short ones what moves least.

    Args:
        slack: how much longer than the shortest an epoch may be for the sake of less traffic, in [0, 1].

    Raises:
        PlanError: `slack` is outside [0, 1].

    Example:
        >>> loader = OffloadingDataLoader(dataset, agent="tcp://storage:5555/pictures", policy=Auto(slack=0.05))
    """

    name = "auto"
    needs_profile = True
    guarded = True  # the loader may leave the plan for epochs that are shorter without it (profiling/guard.py)

    def __init__(self, slack: float = 0.01) -> None:
        if not 0 <= slack <= 1:
            raise PlanError(f"slack must be in [0, 1], got {slack}; 0.01 stands for 1 %")
        self._slack = slack

    def plan(self, facts: Facts) -> Plan:
        """Choose by the module's rule. The plan carries its prices; all zero when nothing is offloaded."""
        idle = unprofiled(self.name, facts)
        if idle is not None:
            return idle
        base = time_without_offloading(measured(facts), facts.rates)
        if self._is_near(base.seconds, base.gpu_s):
            return self._nothing(facts, base, base.gpu_s)
        problem = Problem.of(facts)
        goal = _goal(problem)
        solution = self._solve(problem, goal)
        if self._is_near(base.seconds, solution.time.lower):
            return self._nothing(facts, base, solution.time.lower)
        return self._rounded(facts, problem, goal, base, solution)

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        """The prices at which an agent chooses by the module's rule, for samples like those of the table.

        Where nothing but traffic is to be gained, that is saved within the agent's cores that may be used for it. Where
        traffic has a price, the epoch may become longer than the shortest, for as long as that pays.

        Args:
            facts: of some samples, with a table.
            traffic: what saving traffic may cost.
        """
        table = measured(facts)
        base = time_without_offloading(table, facts.rates)
        problem = Problem.of(facts)
        goal = _goal(problem)
        shortest_s, columns, mix = base.gpu_s, [file_column(problem)], np.ones(1)
        if not self._is_near(base.seconds, base.gpu_s):
            solution = self._solve(problem, goal)
            shortest_s, columns, mix = solution.time.lower, solution.columns, solution.traffic.shares
        if self._is_near(base.seconds, shortest_s):
            columns, mix = self._idle_mix(problem, goal, base, shortest_s, traffic.weight)
        if traffic.cost_per_gb:
            columns, mix = self._paid_mix(problem, goal, columns, mix, traffic.cost_per_gb / GB)
        used = [k for k in range(len(mix)) if mix[k] > LEAST_PART]
        shares = mix[used] / mix[used].sum()
        sums = np.sum([share * columns[k].sums for share, k in zip(shares, used, strict=True)], axis=0)
        if len(used) == 1 and columns[used[0]].prices is None:
            return self._files(base, shortest_s)
        work = EpochWork(wire_bytes=float(sums[0]), loader_s=float(sums[1]), agent_s=float(sums[2]))
        predicted = work.time(facts.samples, facts.rates)
        parts = tuple(Part(float(share), _prices_of(columns[k])) for share, k in zip(shares, used, strict=True))
        return Tariff(parts, _reason(base, predicted, work.wire_bytes, table), predicted, base)

    def _idle_mix(
        self, problem: Problem, goal: Vector, base: EpochTime, shortest_s: float, weight: float
    ) -> tuple[list[Column], Vector]:
        """The least traffic that costs no time, with a share of the agent's cores."""
        columns, files = [file_column(problem)], np.ones(1)
        if not weight:
            return columns, files
        per = problem.seconds_per * [1, 1, 1 / weight]
        idle = replace(problem, seconds_per=per)
        budget_s = max((1 + self._slack) * shortest_s, (1 + EQUAL) * idle.seconds(columns[0].sums))
        found = least_traffic(idle, columns, files, goal, budget_s, FINE_GAP, MAX_FINE_SWEEPS)
        saved = 1 - float(found.shares @ np.array([column.sums[0] for column in columns])) / (columns[0].sums[0] or 1.0)
        return (columns, found.shares) if saved > MIN_SAVED else (columns[:1], files)

    def _paid_mix(
        self, problem: Problem, goal: Vector, columns: list[Column], mix: Vector, cost_s: float
    ) -> tuple[list[Column], Vector]:
        """The mix for which time and the price of the traffic together are least.

        Args:
            columns, mix: the shortest, or nearly so.
            cost_s: seconds that a byte is worth.
        """
        sums = mix @ np.array([column.sums for column in columns[: len(mix)]])
        shortest_s = max(problem.seconds(sums), INSTANT)
        best, least = mix, shortest_s + cost_s * float(sums[0])
        for longer in LONGER:
            found = least_traffic(problem, columns, mix, goal, longer * shortest_s, FINE_GAP, MAX_FINE_SWEEPS)
            sums = found.shares @ np.array([column.sums for column in columns])
            total = problem.seconds(sums) + cost_s * float(sums[0])
            mix = found.shares
            if total < least:
                best, least = mix, total
        return columns, best

    def _files(self, base: EpochTime, best_s: float) -> Tariff:
        return Tariff((FILES,), _why_not(base, best_s), base, base)

    def _is_near(self, seconds: float, best: float) -> bool:
        return seconds <= (1 + self._slack) * best * (1 + EQUAL)

    def _solve(self, problem: Problem, goal: Vector) -> _Solution:
        """Both linear programmes, on samples and then on the whole."""
        found: _Solution | None = None
        for size in LEVELS:
            small = problem.thinned(size)
            found = self._solve_from(small, goal * (problem.samples / small.samples), found, FINE_GAP, MAX_FINE_SWEEPS)
            if small is problem:
                return found
        return self._solve_from(problem, goal, found, COARSE_GAP, MAX_COARSE_SWEEPS)

    def _solve_from(
        self, problem: Problem, goal: Vector, hint: _Solution | None, tolerance: float, most: int
    ) -> _Solution:
        columns = [file_column(problem)]
        time_hint = traffic_hint = None
        if hint is not None:
            columns += [column_at(problem, prices) for prices in _prices_in_use(hint)]
            time_hint, traffic_hint = hint.time.weights, hint.traffic.weights
        time = least_time(problem, columns, tolerance, most, time_hint)
        budget_s = max((1 + self._slack) * time.lower, (1 + EQUAL) * time.upper)
        budget_s = max(budget_s, INSTANT * problem.seconds(columns[0].sums))
        tight_s = budget_s - LEFT_TO_ROUNDING * (budget_s - time.upper)
        traffic = least_traffic(problem, columns, time.shares, goal, tight_s, tolerance, most, traffic_hint)
        return _Solution(columns, time, traffic, budget_s)

    def _rounded(self, facts: Facts, problem: Problem, goal: Vector, base: EpochTime, solution: _Solution) -> Plan:
        prices, budget_s = solution.traffic.prices, solution.budget_s
        chosen = mixed(problem, solution.columns, solution.traffic.shares)
        if problem.samples <= REPAIRED or problem.seconds(problem.sums(chosen)) > budget_s:
            chosen = repaired(problem, chosen, prices, goal, budget_s)
        if problem.seconds(problem.sums(chosen)) > budget_s * (1 + 1e-6):
            rivals = [chosen, self._fastest(problem, goal, solution), *_rival_plans(facts)]
            best_s = min(problem.seconds(problem.sums(rival)) for rival in rivals)
            if self._is_near(base.seconds, best_s):
                return self._nothing(facts, base, best_s)
            near = [rival for rival in rivals if self._is_near(problem.seconds(problem.sums(rival)), best_s)]
            chosen = min(near, key=lambda rival: float(goal @ problem.sums(rival)))
        return self._finished(facts, problem, base, chosen, prices)

    def _fastest(self, problem: Problem, goal: Vector, solution: _Solution) -> NDArray[np.uint8]:
        """The mix of the shortest time made whole, with no thought of traffic until it is reached."""
        time = solution.time
        return repaired(problem, mixed(problem, solution.columns, time.shares), time.prices, goal, time.upper)

    def _finished(
        self, facts: Facts, problem: Problem, base: EpochTime, chosen: NDArray[np.uint8], prices: Vector
    ) -> Plan:
        table = measured(facts)
        predicted = epoch_time(table, chosen, facts.rates)
        sums = problem.sums(chosen)
        bill = float(prices @ sums) or 1.0
        wire, loader, agent = (float(price) for price in prices * (predicted.seconds / bill))
        reason = _reason(base, predicted, float(sums[0]), table) + facts.caveats()
        return Plan(self.name, table.choices, chosen, reason, predicted, Prices(wire, loader, agent))

    def _nothing(self, facts: Facts, base: EpochTime, best_s: float) -> Plan:
        plan = same_for_all(self.name, facts, FILE, _why_not(base, best_s))
        return replace(plan, prices=Prices(0.0, 0.0, 0.0))


def _reason(base: EpochTime, predicted: EpochTime, wire_bytes: float, table: ChoiceTable) -> str:
    files = float(table.wire_bytes[:, 0].sum(dtype=np.float64))
    sent = f"{wire_bytes / files:.0%} of the files' bytes" if files else f"{wire_bytes / 1e6:.4g} MB"
    return (
        f"{base.bottleneck}-bound at {base.seconds:.4g} s without offloading, "
        f"{predicted.bottleneck}-bound at {predicted.seconds:.4g} s with it, "
        f"sending {sent}"
    )


def _why_not(base: EpochTime, best_s: float) -> str:
    return (
        f"{base.bottleneck}-bound at {base.seconds:.4g} s without offloading, "
        f"at best {best_s:.4g} s with it: nothing is offloaded"
    )


def _prices_of(column: Column) -> Prices | None:
    if column.prices is None:
        return None
    wire, loader, agent = (float(price) for price in column.prices)
    return Prices(wire=wire, loader=loader, agent=agent)


def _goal(problem: Problem) -> Vector:
    """float64[3]: traffic as a share of the files' bytes, and the exchange rates of the module's rule.

    Where files need no wire it is a share of what the mean choice would send.
    """
    files = float(problem.wire[0].sum(dtype=np.float64))
    if not files:
        some = problem.wire[np.isfinite(problem.wire) & (problem.wire > 0)]
        files = float(some.mean(dtype=np.float64)) * problem.samples if some.size else 1.0
    loader = float(problem.loader.mean(dtype=np.float64)) * problem.samples or 1.0
    agent = float(problem.agent.mean(dtype=np.float64)) * problem.samples or 1.0
    return np.array([1 / files, LOADER_EXCHANGE / loader, AGENT_EXCHANGE / agent])


def _prices_in_use(solution: _Solution) -> list[Vector]:
    """The prices of the columns that either mix uses."""
    used = solution.traffic.shares > MIN_SHARE
    used[: len(solution.time.shares)] |= solution.time.shares > MIN_SHARE
    found = [solution.columns[k].prices for k in np.flatnonzero(used)]
    return [prices for prices in found if prices is not None]


def _rival_plans(facts: Facts) -> list[NDArray[np.uint8]]:
    """What the other policies choose, as far as the table can tell."""
    plans = [policy.plan(facts) for policy in (AllOff(), ResizeOff(), Sophon())]
    return [plan.chosen for plan in plans if plan.predicted is not None]
