"""Rules by which a fleet of agents can size itself, ours and published ones, with equal inputs and a number as result.

Each is a pure class: no clock, no file. Its only input is a `Seen`, once a period. Constants are those of the
published code, not tuned: Cachew's and Pecan's in eth-easl/cachew (`scaling_utils.cc`, `local_worker_decision_utils.cc`
of tensorflow/core/data/service/easl), the tf.data service's in tensorflow (core/data/service/auto_scaler.cc).

What differs from there, in favour of those rules: one job has all trainings as its clients, since the tf.data service
takes the maximum over jobs. Periods just after agents came or went are not compared with others, because trainings
still have batches in hand. Pecan, which decides once per job, decides again when a training comes or goes. Its workers
at the trainer are left out: its remote ones are what a fleet is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Protocol

from storage_agent.fleet.fleet_size import HELD_S, FleetSize, FoundWantedFile

CLIENT_PRICE, AGENT_PRICE = 4.96, 0.427
"""$ per hour of a training and of an agent: Pecan's C and W."""


@dataclass(frozen=True)
class Seen:
    """Input of a rule.

    Args:
        now_s: monotonic time.
        present: agents that there are or that are starting.
        ready: those of them that serve.
        batch_s: mean time from batch to batch over all trainings in the period; None where there was no batch.
        queue: batches that wait to be trained on, in the mean over trainings.
        trainings: that run.
        demanded: images/s that each training would take if it never waited, where that is known.
        agents: images/s that each agent could make, where that is known.
        wanted: files in which loaders say what they could use.
    """

    now_s: float
    present: int
    ready: int
    batch_s: float | None = None
    queue: float = 0.0
    trainings: int = 1
    demanded: Sequence[float] = ()
    agents: Sequence[float] = ()
    wanted: Mapping[str, FoundWantedFile] = field(default_factory=dict)


class Rule(Protocol):
    """Asked once a period."""

    def after(self, seen: Seen) -> int:
        """The number of agents that there should be."""


class Ours:
    """`FleetSize`, by what loaders want."""

    def __init__(self, least: int, most: int, scale: float = 1.0) -> None:
        self._size = FleetSize(least, most, held_s=scale * HELD_S)

    def after(self, seen: Seen) -> int:
        """See `Rule`."""
        return self._size.after(seen.wanted, seen.present, seen.now_s)


@dataclass(frozen=True)
class _Metrics:
    agents: int
    batch_s: float
    queue: float

    def better_than(self, before: _Metrics) -> float:
        """Share of the batch time that was saved; below 0 where it became longer."""
        return 1 - self.batch_s / before.batch_s


class _Climber:
    """Tries one agent more or less at a time, and compares batch times.

    Metrics do not count while the number of agents is not what was asked for, nor in the `UNSETTLED` periods after.
    """

    UNSETTLED = 3
    """With 2, a batch or two in hand hide what an agent fewer costs, and both climbers end with one too few."""

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self._target: int | None = None
        self._ready: int | None = None
        self._unsettled = 0
        self._other: _Metrics | None = None
        """The newest with the number of agents before this one."""
        self._last: _Metrics | None = None

    def after(self, seen: Seen) -> int:
        """See `Rule`."""
        if self._target is None:
            self._target = seen.present
        self._unsettled = max(0, self._unsettled - 1) if seen.ready == self._ready else self.UNSETTLED
        self._ready = seen.ready
        if not self._unsettled and seen.ready == self._target and seen.batch_s is not None:
            now = _Metrics(seen.ready, seen.batch_s, seen.queue)
            if self._last is not None and self._last.agents != now.agents:
                self._other = self._last
            self._last = now
            self._target = max(self.least, min(self.most, self._next(now, self._other)))
        return self._target

    def _next(self, now: _Metrics, before: _Metrics | None) -> int:
        raise NotImplementedError


class Cachew(_Climber):
    """Cachew's (ATC 2022): up while one agent more saves 7 % of the batch time, down while one fewer costs below 3 %.

    Then it is stable, and looks every 20 metrics whether the queue or the batch time has grown by half.
    """

    UP, DOWN, UNSTABLE = 0.07, -0.03, 1.2
    STABLE_METRICS = 20
    GROWTH = 1.5

    def __init__(self, least: int, most: int, scale: float = 1.0) -> None:
        super().__init__(least, most)
        self._stable_metrics = round(scale * self.STABLE_METRICS)
        self._converged: _Metrics | None = None
        """None while it climbs."""
        self._stable = 0

    def _next(self, now: _Metrics, before: _Metrics | None) -> int:
        if self._converged is not None:
            return self._while_stable(now, self._converged)
        if before is None:
            return now.agents + 1
        improvement = now.better_than(before)
        if improvement > self.UNSTABLE:
            return now.agents
        if before.agents < now.agents:
            if improvement > self.UP:
                self._converged = now if now.agents >= self.most else None
                return now.agents + 1
        elif improvement > self.DOWN and now.agents > 1:
            return now.agents - 1
        self._converged, self._stable = before, 0
        return before.agents  # also from the only agent back to two: so it is published

    def _while_stable(self, now: _Metrics, converged: _Metrics) -> int:
        self._stable += 1
        if self._stable <= self._stable_metrics:
            return now.agents
        self._stable = 0
        # A queue that was empty has no ratio; then neither is looked at.
        if converged.queue > 0:
            if now.queue / converged.queue > self.GROWTH and converged.agents > 1:
                self._converged = None
                return converged.agents - 1
            if now.batch_s / converged.batch_s > self.GROWTH:
                self._converged = None
                return converged.agents + 1
        return now.agents


class Pecan(_Climber):
    """Pecan's AutoPlacement (ATC 2024), of remote workers: an agent is kept while it saves more than it costs.

    With r the share of the batch time that it saves, that is r (C + n W) > W (1 - r). Then agents are taken away while
    W > -r (C + n W). Then it is stable for good.
    """

    UNSTABLE = 1.3

    def __init__(self, least: int, most: int, scale: float = 1.0) -> None:
        super().__init__(least, most)
        self._trainings: int | None = None
        self._phase = "up"

    def after(self, seen: Seen) -> int:
        """See `Rule`."""
        if self._trainings != seen.trainings:
            self._trainings = seen.trainings
            self._phase, self._last, self._other, self._ready = "up", None, None, None
        return super().after(seen)

    def _next(self, now: _Metrics, before: _Metrics | None) -> int:
        if self._phase == "stable":
            return now.agents
        if before is None:
            return self._down(now) if now.agents >= self.most else now.agents + 1
        improvement = now.better_than(before)
        if abs(improvement) > self.UNSTABLE:
            return now.agents
        if self._phase == "up":
            saved = improvement * (CLIENT_PRICE + before.agents * AGENT_PRICE)
            if saved <= AGENT_PRICE * (1 - improvement):
                # Back, and from there one fewer is tried, which is compared with what was measured before.
                self._phase = "back"
                return before.agents
            return self._down(now) if now.agents >= self.most else now.agents + 1
        if self._phase == "back":
            return self._down(now)
        lost = -improvement * (CLIENT_PRICE + now.agents * AGENT_PRICE)
        if lost >= AGENT_PRICE:
            self._phase = "stable"
            return now.agents + 1
        return self._down(now)

    def _down(self, now: _Metrics) -> int:
        self._phase = "down" if now.agents > self.least else "stable"
        return now.agents - 1


class TfDataService:
    """The tf.data service's: what all trainings take, by what an agent makes in the mean.

    The published rule only returns the number; here it is applied at once.
    """

    SIGMAS = 1.0
    MOST_TIMES = 4

    def __init__(self, least: int, most: int, scale: float = 1.0) -> None:
        self.least, self.most = least, most

    def after(self, seen: Seen) -> int:
        """See `Rule`."""
        if not seen.demanded or not seen.agents:
            return max(self.least, min(self.most, seen.present))
        taken, made = (self._without_outliers(rates) for rates in (seen.demanded, seen.agents))
        number = math.ceil(math.fsum(taken) / mean(made))
        return max(self.least, min(self.most, number, self.MOST_TIMES * max(1, seen.present)))

    def _without_outliers(self, rates: Sequence[float]) -> list[float]:
        middle, around = sorted(rates)[len(rates) // 2], mean(rates)
        away = self.SIGMAS * (stdev(rates) if len(rates) > 1 else 0.0)
        return [rate if abs(rate - around) <= away else middle for rate in rates]


RULES: dict[str, Callable[[int, int, float], Rule]] = {
    "ours": Ours,
    "cachew": Cachew,
    "pecan": Pecan,
    "tf.data": TfDataService,
}
"""By name; called with bounds of the number, and what their own waiting times are multiplied by."""


def score(stall_s: float, agent_s: float) -> float:
    """Return the cost in $ of waiting trainings and of agents, by Pecan's prices.

    Args:
        stall_s: seconds that all trainings have waited.
        agent_s: seconds of all agents, from their start to their end.
    """
    return (stall_s * CLIENT_PRICE + agent_s * AGENT_PRICE) / 3600
