"""What the resources give at this moment, from what the last second or two have shown. No clock, no I/O.

| resource | measured as | when nothing shows it |
| --- | --- | --- |
| GPU | samples/s of the training step, by the step clock | unlimited |
| loader CPU | CPU s per s at work, times the processes: another program on its cores shows at once | as before |
| agent CPU | cores that it promises this loader, times CPU s per s at work there | comes back by a tenth a window |
| wire | bytes/s while workers waited for replies behind others | is tried with 1 %, 2 %, 4 % ... more |
| disk of the agent | bytes/s of reading files, times its readers | as before |

Every window of samples measures loader and agent anew, whatever the plan, so neither can be stuck at what a bad moment
has shown. Only the wire has to be tried: a loader that does not fill it cannot know how wide it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sophon_loader.decide.facts import Rates

MIN_WAITING = 0.1
"""Share of their time for which workers must have waited for replies, for the wire to be what held them up."""
QUEUED_ON_WIRE = 2.0
"""A reply that was on its way for so many times the shortest lay behind others: the wire was busy all the time."""
NET_JITTER_S = 0.004
"""Seconds by which replies are late for reasons of their own: a scheduler's time slice or two."""
WEIGHT = 0.5
"""Of the newest window in a rate. Windows are about a second long: after a change, a rate is off by less than a tenth
within four."""
GROWTH = 0.01
"""By how much the wire is first tried beyond what it has shown; doubled with each window that bears it."""
MAX_GROWTH = 0.25
MOST_OVER = 2.0
"""Times what a wire that was busy gave, that it is believed to give at most: while nobody waits for it, it is tried with
ever more, and after ten minutes of that the mean alone would take three to come down."""
RECOVERY = 1.1
"""Times per window by which the agent's cores are believed to come back while nothing runs there."""
MIN_WORK_S = 0.01
"""CPU seconds that say how fast a core is: of fewer, a single time slice decides."""
MIN_CORES = 1e-3


@dataclass(frozen=True)
class Window:
    """What a loader did in a second or two.

    Args:
        seconds: its length, > 0.
        processes: of the loader.
        samples: delivered.
        wire_bytes: received.
        waited_s: seconds for which the workers waited for replies, all together.
        busy_s: seconds for which they worked on samples, all together.
        loader_cpu_s: CPU seconds of the workers.
        work_cpu_s, work_s: CPU seconds and seconds of ops and encoding at the agent.
        read_bytes, read_s: bytes and seconds of reading files there.
        fresh: replies that came while a worker waited.
        net_s: seconds that those were neither queued, read nor worked on, all together.
        gpu_samples_s: of the training step; inf while that is not known.
        agent_cores: that the agent promised; 0 while it has said nothing.
        shortest_net_s: the shortest time that a reply of this iteration was on its way; inf before one came.
    """

    seconds: float
    processes: int
    samples: int
    wire_bytes: float
    waited_s: float
    busy_s: float
    loader_cpu_s: float
    work_cpu_s: float
    work_s: float
    read_bytes: float
    read_s: float
    fresh: int
    net_s: float
    gpu_samples_s: float
    agent_cores: float
    shortest_net_s: float = math.inf

    @property
    def waiting(self) -> float:
        """Share of their time for which the workers waited for replies."""
        return self.waited_s / (self.seconds * self.processes)


@dataclass(frozen=True)
class Conditions:
    """What the resources give.

    Example:
        >>> now = Conditions.at_first(loader_cores=2.0, agent_cores=4.0).after(window)
        >>> now.rates.wire_bytes_s
        11800000.0

    Args:
        rates: of GPU, wire and cores.
        max_loader_cores: that the loader may use.
        disk_bytes_s: at which one reader of the agent gets files.
        agent_speed: CPU seconds per second that work at the agent gets, in (0, 1].
        growth: by how much the wire is tried next.
    """

    rates: Rates
    max_loader_cores: float
    disk_bytes_s: float = math.inf
    agent_speed: float = 1.0
    growth: float = GROWTH

    @staticmethod
    def at_first(loader_cores: float, agent_cores: float, wire_bytes_s: float = math.inf) -> Conditions:
        """Before anything was measured.

        Args:
            loader_cores: that the loader's processes may use.
            agent_cores: that the agent has.
            wire_bytes_s: as an earlier run has found it; inf if none has.
        """
        rates = Rates(math.inf, wire_bytes_s, loader_cores, max(agent_cores, MIN_CORES))
        return Conditions(rates, loader_cores)

    def after(self, window: Window) -> Conditions:
        """After a window; one without samples changes nothing."""
        if window.samples <= 0 or window.seconds <= 0:
            return self
        rates = replace(self.rates, gpu_samples_s=window.gpu_samples_s)
        if window.loader_cpu_s > MIN_WORK_S and window.busy_s > 0:
            cores = window.processes * min(1.0, window.loader_cpu_s / window.busy_s)
            rates = replace(rates, loader_cores=_mean(rates.loader_cores, min(cores, self.max_loader_cores)))
        speed = self._speed(window)
        if window.agent_cores > 0:
            rates = replace(rates, agent_cores=max(MIN_CORES, speed * window.agent_cores))
        disk = self.disk_bytes_s
        if window.read_s > 0 and window.read_bytes > 0:
            disk = _mean(disk, window.read_bytes / window.read_s)
        now = replace(self, rates=rates, agent_speed=speed, disk_bytes_s=disk)
        return now._after_wire(window)

    def _speed(self, window: Window) -> float:
        if window.work_cpu_s < MIN_WORK_S:
            return min(1.0, self.agent_speed * RECOVERY)
        return min(1.0, _mean(self.agent_speed, window.work_cpu_s / max(window.work_s, window.work_cpu_s)))

    def _after_wire(self, window: Window) -> Conditions:
        got, known = window.wire_bytes / window.seconds, self.rates.wire_bytes_s
        net_s = window.net_s / window.fresh if window.fresh else 0.0
        lay_behind_others = net_s > QUEUED_ON_WIRE * window.shortest_net_s + NET_JITTER_S
        if lay_behind_others and window.waiting >= MIN_WAITING:
            wire = got if got > known else min(_mean(known, got), MOST_OVER * got)
            return self._with_wire(wire, GROWTH)
        if not math.isfinite(known):
            return self
        return self._with_wire(max(known * (1 + self.growth), got), min(2 * self.growth, MAX_GROWTH))

    def _with_wire(self, bytes_s: float, growth: float) -> Conditions:
        rates = self.rates if not 0 < bytes_s < math.inf else replace(self.rates, wire_bytes_s=bytes_s)
        return replace(self, rates=rates, growth=growth)


def _mean(known: float, now: float) -> float:
    return now if not math.isfinite(known) else known + WEIGHT * (now - known)
