"""The default policy: nearly the shortest epoch, and of those the least work, by three prices.

The rule, with `slack` = 1 % and T the cost model's epoch seconds (`decide/cost.py`):

1. T* is the shortest time of any plan. If no offloading comes within the slack of T*, nothing is offloaded to save
   time: no wire, CPU or trust is spent on a gain that the model cannot promise.
2. Otherwise, consider all plans within five times the slack of T* that are shorter than without offloading. Take the
   one with the least work: seconds of the wire, of the loader's cores and of the agent's, added up.
3. If T* is set by the GPU or the agent's disk, consider all plans within the slack of it. Take the one with the least
   traffic, then the least agent CPU, then the least loader CPU. "Then" is an exchange rate: strictly, one byte would
   outweigh an hour of CPU. Agent CPU of one average choice for every sample counts as 0.1 % of the files' bytes, loader
   CPU as 0.001 %.

The plan of T* itself keeps every resource fully busy, and pays for the last percent of bytes with all idle CPU. The
model does not see that samples differ, nor that fully busy resources wait for one another. So in practice that plan
takes longer (docs/architecture.md has figures).

All steps are linear programmes solved through their dual prices (`decide/dual.py`). The result is not a plan of the
known samples, but the prices: by these the agent chooses for each requested sample. If the optimum mixes several
prices, requests are divided among them.

SOPHON's greedy is the case of two choices per sample and one price.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sophon_loader.decide.cost import EpochTime, EpochWork, time_without_offloading
from sophon_loader.decide.dual import EQUAL, Column, Problem, file_column, least_time, least_traffic
from sophon_loader.decide.facts import ChoiceTable, Facts
from sophon_loader.decide.filling import fill_of
from sophon_loader.decide.policies.common import measured
from sophon_loader.decide.simplex import Vector
from sophon_loader.decide.tariff import FILES, NO_TRAFFIC, Part, Prices, Tariff, Traffic
from sophon_loader.decide.words import resource
from sophon_loader.errors import PlanError
from sophon_loader.figures import per_second, percent, size

GAP = 1e-6
"""Relative gap between the bounds at which to stop."""
MAX_SWEEPS = 200
"""Maximum number of sweeps; a dozen or two are usual."""
INSTANT = 1e-6
"""Share of the time without offloading below which all epochs count as equally short."""
GB = 1e9
MIN_SAVED = 0.05
"""Minimum share of the files' bytes to save for the agent to be asked if there is no other gain."""
SPARE = 5.0
"""Number of slacks by which an epoch may be longer than the shortest in order to need less work."""
LONGER = (1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0, 5.0)
"""Factors of the shortest epoch that are tried if traffic has a price; the sum of time and price is convex in them."""
MORE = 1.01
"""Ratio of the bytes sent to the files' bytes above which the reason names what the extra bytes save."""
LEAST_PART = 0.01
"""Share of the requests below which a part of a tariff is left out."""
AGENT_EXCHANGE = 1e-3
"""Worth of the agent CPU of one average choice for every sample, as a share of the files' bytes."""
LOADER_EXCHANGE = 1e-5
"""Worth of the loader CPU of one average choice for every sample, as a share of the files' bytes."""


class Auto:
    """Offload what shortens the epoch most; of nearly equally short plans, take the one with the least work.

    Args:
        slack: share by which an epoch may be longer than the shortest in order to save traffic, in [0, 1]; five times
            that to save work.

    Raises:
        PlanError: `slack` is outside [0, 1].

    Example:
        >>> loader = OffloadingDataLoader(dataset, agent="tcp://storage:5555/pictures", policy=Auto(slack=0.05))
    """

    name = "auto"

    def __init__(self, slack: float = 0.01) -> None:
        if not 0 <= slack <= 1:
            raise PlanError(f"slack must be in [0, 1], got {slack}; 0.01 stands for 1 %")
        self._slack = slack

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        """Return the prices by which an agent chooses under the module's rule, for samples like those of the table.

        If only traffic can be saved, it is saved within the allowed share of the agent's cores. If traffic has a price,
        the epoch may become longer than the shortest, as long as that pays.

        Args:
            facts: of some samples, with a table.
            traffic: the allowed cost of saving traffic.
        """
        table = measured(facts)
        base = time_without_offloading(table, facts.rates, facts.cached)
        problem = Problem.of(facts)
        goal = _goal(problem)
        shortest_s, columns, mix = base.fixed_s, [file_column(problem)], np.ones(1)
        if not self._is_near(base.seconds, base.fixed_s):
            shortest_s, columns, mix = self._solve(problem, goal, base.seconds)
        if self._is_near(base.seconds, shortest_s):
            columns, mix = self._idle_mix(problem, goal, base, shortest_s, traffic.weight)
        if traffic.cost_per_gb:
            columns, mix = self._paid_mix(problem, goal, columns, mix, traffic.cost_per_gb / GB)
        used = [k for k in range(len(mix)) if mix[k] > LEAST_PART]
        shares = mix[used] / mix[used].sum()
        sums = np.sum([share * columns[k].sums for share, k in zip(shares, used, strict=True)], axis=0)
        if len(used) == 1 and columns[used[0]].prices is None:
            return self._files(base, shortest_s, table)
        work = EpochWork(wire_bytes=float(sums[0]), loader_s=float(sums[1]), agent_s=float(sums[2]))
        predicted = work.time(facts.samples, facts.rates)
        fill = fill_of(problem, columns, mix, facts.admitted)
        parts = tuple(Part(float(share), _prices_of(columns[k], fill)) for share, k in zip(shares, used, strict=True))
        return Tariff(parts, _reason(base, predicted, work.wire_bytes, table), predicted, base)

    def _idle_mix(
        self, problem: Problem, goal: Vector, base: EpochTime, shortest_s: float, weight: float
    ) -> tuple[list[Column], Vector]:
        """Return the mix of least traffic that costs no time, with a share of the agent's cores."""
        columns, files = [file_column(problem)], np.ones(1)
        if not weight:
            return columns, files
        per = problem.seconds_per * [1, 1, 1 / weight]
        idle = replace(problem, seconds_per=per)
        budget_s = max((1 + self._slack) * shortest_s, (1 + EQUAL) * idle.seconds(columns[0].sums))
        found = least_traffic(idle, columns, files, goal, budget_s, GAP, MAX_SWEEPS)
        crossing = float(columns[0].sums[0])
        saved = crossing - float(found.shares @ np.array([column.sums[0] for column in columns]))
        return (columns, found.shares) if saved > MIN_SAVED * crossing else (columns[:1], files)

    def _paid_mix(
        self, problem: Problem, goal: Vector, columns: list[Column], mix: Vector, cost_s: float
    ) -> tuple[list[Column], Vector]:
        """Return the mix with the least sum of time and price of the traffic.

        Args:
            columns, mix: the shortest, or nearly so.
            cost_s: seconds that a byte is worth.
        """
        sums = mix @ np.array([column.sums for column in columns[: len(mix)]])
        shortest_s = max(problem.seconds(sums), INSTANT)
        best, least = mix, shortest_s + cost_s * float(sums[0])
        for longer in LONGER:
            found = least_traffic(problem, columns, mix, goal, longer * shortest_s, GAP, MAX_SWEEPS)
            sums = found.shares @ np.array([column.sums for column in columns])
            total = problem.seconds(sums) + cost_s * float(sums[0])
            mix = found.shares
            if total < least:
                best, least = mix, total
        return columns, best

    def _files(self, base: EpochTime, best_s: float, table: ChoiceTable) -> Tariff:
        return Tariff((FILES,), _why_not(base, best_s, table), base, base)

    def _is_near(self, seconds: float, best: float) -> bool:
        return seconds <= (1 + self._slack) * best * (1 + EQUAL)

    def _solve(self, problem: Problem, goal: Vector, without_s: float) -> tuple[float, list[Column], Vector]:
        """Return the time of the shortest epoch, columns, and their nearly shortest mix of the least work or traffic.

        Args:
            goal: the traffic's.
            without_s: seconds without offloading.
        """
        columns = [file_column(problem)]
        shortest = least_time(problem, columns, GAP, MAX_SWEEPS)
        longest_s = (1 + self._slack) * shortest.lower
        if not self._is_near(shortest.upper, problem.fixed_s):
            goal = problem.seconds_per / shortest.upper
            longest_s = max(longest_s, min((1 + SPARE * self._slack) * shortest.lower, without_s / (1 + self._slack)))
        budget_s = max(longest_s, (1 + EQUAL) * shortest.upper)
        budget_s = max(budget_s, INSTANT * problem.seconds(columns[0].sums))
        traffic = least_traffic(problem, columns, shortest.shares, goal, budget_s, GAP, MAX_SWEEPS)
        return shortest.lower, columns, traffic.shares


def _reason(base: EpochTime, predicted: EpochTime, wire_bytes: float, table: ChoiceTable) -> str:
    files = float(table.wire_bytes[:, 0].sum(dtype=np.float64))
    sent = (
        f"{percent(wire_bytes / files)} of the files' bytes"
        if files
        else f"{size(wire_bytes / table.samples)} per sample"
    )
    if files and wire_bytes > MORE * files:
        sent += f", to spare {resource(base.bottleneck)},"
    return (
        f"without offloading {resource(base.bottleneck)} limits, at {_per_s(table, base.seconds)}; "
        f"with it {resource(predicted.bottleneck)} limits, at {_per_s(table, predicted.seconds)}, and {sent} are sent"
    )


def _why_not(base: EpochTime, best_s: float, table: ChoiceTable) -> str:
    now, best = _per_s(table, base.seconds), _per_s(table, best_s)
    gain = "would not change that" if now == best else f"would give at best {best}"
    return (
        f"without offloading {resource(base.bottleneck)} limits, at {now}, and offloading {gain}: nothing is offloaded"
    )


def _per_s(table: ChoiceTable, seconds: float) -> str:
    """Return the rate as text. The seconds would be those of a table of some samples, not of an epoch."""
    return per_second(table.samples / seconds) if seconds > 0 else "any rate"


def _prices_of(column: Column, fill: float) -> Prices | None:
    if column.prices is None:
        return None
    wire, loader, agent = (float(price) for price in column.prices)
    fill = fill if column.kept_here else 0.0  # else nothing would be read there
    return Prices(wire=wire, loader=loader, agent=agent, kept_here=column.kept_here, fill=fill)


def _goal(problem: Problem) -> Vector:
    """Return float64[3]: traffic as a share of the files' bytes, and the exchange rates of the module's rule.

    If files need no wire, traffic is a share of the bytes of the mean choice.
    """
    files = float(problem.wire[0].sum(dtype=np.float64))
    if not files:
        some = problem.wire[np.isfinite(problem.wire) & (problem.wire > 0)]
        files = float(some.mean(dtype=np.float64)) * problem.samples if some.size else 1.0
    loader = float(problem.loader.mean(dtype=np.float64)) * problem.samples or 1.0
    agent = float(problem.agent.mean(dtype=np.float64)) * problem.samples or 1.0
    return np.array([1 / files, LOADER_EXCHANGE / loader, AGENT_EXCHANGE / agent])
