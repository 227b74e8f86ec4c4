"""Simulates a rule of `fleet_rules`: trainings that come and go, agents that take a while to start, no clock.

Training: takes `demand` images/s while it has batches; it holds some ahead. Agents: each makes `capacity`
images/s; all trainings have equal shares, and what one leaves the others get. Loaders and consumers know their own
demand some seconds after they began. Batch times are seen with noise, which is all that is random.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.fleet_rules import RULES, Rule, Seen
from sophon_loader.decide.agent_cores import NEARLY
from sophon_loader.wire.entry import REWRITTEN_S
from sophon_loader.wire.wanted_cores import WantedCores
from storage_agent.fleet.fleet_size import LOOK_S, FoundWantedFile

TICK_S = 0.1
KNOWN_S = 6.0
"""Seconds after its begin at which a training's demand is known."""
AHEAD = 2.0
"""Batches that a training holds."""
BATCH = 8
NOISE = 0.02
"""Standard deviation of a period's mean batch time, by itself."""


@dataclass(frozen=True)
class Load:
    """Trainings over time, and the agents there can be.

    Args:
        trainings: how many run, phase by phase.
        phases_s: length of each phase.
        demand: images/s of a training that never waits.
        capacity: images/s that an agent adds.
        start_s: from an agent's start until it serves.
        least, most: agents.
        alone: images/s of a training's loader without agents.
    """

    trainings: Sequence[int]
    phases_s: Sequence[float]
    demand: float
    capacity: float
    start_s: float
    least: int = 1
    most: int = 8
    alone: float = 0.0

    def at(self, now_s: float) -> int:
        """Return the number of trainings that run; 0 after the end."""
        for number, length_s in zip(self.trainings, self.phases_s, strict=True):
            if now_s < length_s:
                return number
            now_s -= length_s
        return 0


@dataclass
class Outcome:
    """Costs of a rule, and the number of agents at each phase's end."""

    stall_s: float = 0.0
    agent_s: float = 0.0
    changes: int = 0
    agents: list[int] = field(default_factory=list)


@dataclass
class _Training:
    begun_s: float
    ahead: float = 0.0
    batches: float = 0.0
    """In this period."""

    def step(self, given: float, most: float) -> float:
        """Go on for a tick; the share of it that was a stall.

        Args:
            given: batches that come in it.
            most: batches that it would take in it.
        """
        taken = min(self.ahead + given, most)
        self.ahead = min(AHEAD, self.ahead + given - taken)
        self.batches += taken
        return 1 - taken / most


class Simulation:
    """One rule under one load.

    Args:
        load: the trainings.
        rule: asked every `LOOK_S`.
        seed: of the noise.
    """

    def __init__(self, load: Load, rule: Rule, seed: int) -> None:
        self._load, self._rule = load, rule
        self._random = random.Random(seed)
        self._trainings: list[_Training] = []
        self._ready_at_s: list[float] = [0.0] * load.least
        """Time at which each agent is ready. The newest is stopped first."""
        self._outcome = Outcome()

    def run(self) -> Outcome:
        """All phases."""
        ends = [sum(self._load.phases_s[: index + 1]) for index in range(len(self._load.phases_s))]
        ticks_per_look = round(LOOK_S / TICK_S)
        for tick in range(round(ends[-1] / TICK_S)):
            now_s = tick * TICK_S
            number = self._load.at(now_s)
            self._trainings = self._trainings[:number]
            self._trainings += [_Training(now_s) for _ in range(number - len(self._trainings))]
            if tick % ticks_per_look == 0:
                self._look(now_s)
            self._tick(now_s)
            if any(abs(now_s + TICK_S - end_s) < TICK_S / 2 for end_s in ends):
                self._outcome.agents.append(len(self._ready_at_s))
        return self._outcome

    def _tick(self, now_s: float) -> None:
        most, alone = (rate / BATCH * TICK_S for rate in (self._load.demand, self._load.alone))
        left = sum(at_s <= now_s for at_s in self._ready_at_s) * self._load.capacity / BATCH * TICK_S
        # Those that are full first: what they leave is for those that are not.
        for index, one in enumerate(sorted(self._trainings, key=lambda one: -one.ahead)):
            share = left / (len(self._trainings) - index)
            given = min(share, max(0.0, AHEAD - one.ahead + most - alone))
            left -= given
            self._outcome.stall_s += one.step(given + alone, most) * TICK_S
        self._outcome.agent_s += len(self._ready_at_s) * TICK_S

    def _look(self, now_s: float) -> None:
        wanted = max(self._load.least, min(self._load.most, self._rule.after(self._seen(now_s))))
        self._outcome.changes += wanted != len(self._ready_at_s)
        self._ready_at_s = self._ready_at_s[:wanted]
        self._ready_at_s += [now_s + self._load.start_s] * (wanted - len(self._ready_at_s))

    def _seen(self, now_s: float) -> Seen:
        batches = sum(one.batches for one in self._trainings)
        known = [one for one in self._trainings if now_s - one.begun_s >= KNOWN_S]
        ready = sum(at_s <= now_s for at_s in self._ready_at_s)
        batch_s = None
        if batches:
            batch_s = LOOK_S * len(self._trainings) / batches * (1 + self._random.gauss(0, NOISE))
        for one in self._trainings:
            one.batches = 0.0
        lacks = max(0.0, self._load.demand / NEARLY - self._load.alone)
        cores = WantedCores(lacks / self._load.capacity, 1.0)
        return Seen(
            now_s=now_s,
            present=len(self._ready_at_s),
            ready=ready,
            batch_s=batch_s,
            queue=sum(one.ahead for one in self._trainings) / max(1, len(self._trainings)),
            trainings=len(self._trainings),
            demanded=[self._load.demand] * len(known),
            agents=[self._load.capacity + self._load.alone] * ready,
            wanted={
                f"wanted-{one.begun_s:g}-{index}.json": FoundWantedFile((int(now_s // REWRITTEN_S), index, b""), cores)
                for index, one in enumerate(known)
            },
        )


def simulated(name: str, load: Load, scale: float, seed: int) -> Outcome:
    """Return the outcome of a rule under a load.

    Args:
        name: of `RULES`.
        load: the trainings.
        scale: of the rule's waiting times.
        seed: of the noise.
    """
    return Simulation(load, RULES[name](load.least, load.most, scale), seed).run()
