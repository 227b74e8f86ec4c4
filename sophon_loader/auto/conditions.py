"""Current rates of the resources, estimated from the last second or two. No clock, no I/O.

| resource | measured as | when nothing shows it |
| --- | --- | --- |
| GPU | samples/s of the time for which the training did not wait for batches | unlimited |
| loader CPU | CPU s per s at work, times the processes, less what they idle while the training waits | as before |
| agent CPU | cores that it promises, times the share of them that work there gets | comes back by a seventh a window |
| wire | bytes/s while workers waited for replies behind others | is tried with 1 %, 2 % ... more, to twice what came |
| disk of the agent | bytes/s while files were read | as before; where reads wait for CPU, comes back by a seventh |

Every window of samples measures loader and agent again under any plan, so a bad moment does not fix their rates. Only
the wire has to be tried: a loader that does not fill it cannot know its bandwidth. Before it has held anything up, at
least twice the bytes/s that cross it are assumed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sophon_loader.decide.facts import Rates
from sophon_loader.decide.tariff import Tariff

MIN_WAITING = 0.1
"""Share of their time for which workers must have waited for replies, for the wire to count as the reason."""
QUEUED_ON_WIRE = 1.3
"""Factor to the shortest time of a reply on its way, above which it waited behind others: the wire was busy all the
time. If twice as much is requested as the wire holds, the factor is 2."""
NET_JITTER_S = 0.004
"""Seconds by which replies are late for other reasons: a scheduler's time slice or two."""
WEIGHT = 0.5
"""Weight of the newest window in the logarithm of a rate. Windows are about a second long: a change to a half is known
within a tenth after three."""
WEIGHT_OF_CHANGE = 0.85
"""Weight of a window that shows less than half or more than twice: that is no scatter."""
GROWTH = 0.01
"""First step, as a share, by which more is sent than the wire has carried so far. Each window that succeeds doubles
it."""
MAX_GROWTH = 1.0
BORNE = 2.0
"""Maximum rate tried on a wire that has held something up, as a multiple of the current bytes/s. While a plan leaves
the wire idle, nothing shows its limit, and the plan would end up being made for a thousand times its bandwidth."""
WIDER = 1.1
"""Factor to the wire's earlier rate, above which a higher one is no scatter."""
LIKELY_WIRE_BYTES_S = 12.5e6
"""Bandwidth assumed for a wire before its first measurement, in bytes/s (100 Mbit/s)."""
BORNE_UNSEEN = 2.0
"""Lowest rate assumed before a wire has held anything up, as a multiple of the current bytes/s. If a plan wants more, a
hundred times as much is reached within seven windows of a quarter of a second. With a larger factor, requests until the
next window would take the place of a batch or two on a wire that is full by then."""
LEAST_WIRE_BYTES_S = 0.125e6
"""Lowest estimate of such a wire's bandwidth, in bytes/s (1 Mbit/s)."""
RECOVERY = 1.15
"""Factor per window by which unused rates change. The agent's cores rise by it while nothing runs there, and its disk
while reads wait for CPU. The bandwidth of a wire that was never measured, and is hardly used, falls by it."""
MAX_WIRE_BYTES_S = 1e12
"""Limit of a rate, in bytes/s, beyond any wire; a rate that nothing contradicts stays finite."""
MIN_WORK_S = 0.003
"""Minimum CPU seconds to measure a core's speed. With fewer, one time slice dominates."""
SPARE_CPU = 0.2
"""Share of the agent's cores that must be idle for the time of a read to be the disk's: else it waits for CPU, too."""
MIN_SHARED_CPU_S = 0.05
"""Minimum CPU seconds of the agent in a window to measure that share. With fewer, a batch more or less dominates."""
MIN_CORES = 1e-3
DOUBTED_BELOW = 0.95
"""Share of the model's rate without offloading, below which a tariff is doubted. Windows scatter by a few percent."""
DOUBTED_FOR = 3
"""Number of windows in a row, so that a pause of the training (a checkpoint, an evaluation) is no reason."""
PATIENCE_MOST = 48
HELD_FIRST = 3
"""Number of windows for which files are tried: one until earlier requests are answered, and two to measure."""
HELD_MOST = 96
MUST_GAIN = 1.03
"""Minimum factor in samples/s that files must have brought, to be kept."""
ANOTHER = 1.3
"""Ratio of a tariff's promise to the doubted tariff's, above which it counts as another: something has changed."""


@dataclass(frozen=True)
class MeasuredWindow:
    """Measurements of a loader over a second or two.

    Args:
        seconds: its length, > 0.
        processes: number of the loader's processes.
        samples: delivered.
        wire_bytes: received.
        waited_s: seconds for which the workers waited for replies, all together.
        busy_s: seconds for which they worked on samples, all together.
        loader_cpu_s: CPU seconds of the workers.
        work_cpu_s, work_s: CPU seconds and seconds of ops and encoding at the agent.
        upkeep_s: CPU seconds of the agent for anything else.
        agent_cpu_s: all CPU seconds of the agent, those of reading among them.
        read_bytes, read_s: bytes and seconds of reading files there.
        fresh: number of replies that arrived while a worker waited.
        net_s: seconds for which those were neither queued, read nor worked on, all together.
        queued_s: seconds for which those waited at the agent, all together.
        gpu_samples_s: samples/s of the training step; inf if unknown.
        agent_cores: promised by the agent; 0 before it has answered.
        per_worker: cores for each of its workers, all at work; 0 before it has answered.
        shortest_net_s: shortest time that a reply of this iteration was on its way; inf before the first.
        awaited: share of its time for which the training waited for batches.
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
    upkeep_s: float
    agent_cpu_s: float
    read_bytes: float
    read_s: float
    fresh: int
    net_s: float
    queued_s: float
    gpu_samples_s: float
    agent_cores: float
    per_worker: float = 0.0
    shortest_net_s: float = math.inf
    awaited: float = 0.0

    @property
    def waiting(self) -> float:
        """Share of their time for which the workers waited for replies."""
        return self.waited_s / (self.seconds * self.processes)

    @property
    def loader_cores(self) -> float:
        """Number of cores that the loader had.

        While the training waits for batches, a worker that neither works nor waits for a reply is handing a batch over,
        or is behind its turn: that time is lost. While the training does not wait, such a worker has nothing to do.
        """
        idle = max(0.0, 1 - self.waiting - self.busy_s / (self.seconds * self.processes))
        return self.processes * min(1.0, self.loader_cpu_s / self.busy_s) * (1 - idle * self.awaited)

    @property
    def held_up_by_wire(self) -> bool:
        """True if workers waited for replies that were behind others on their way.

        Most requests made ahead are where they are held up: there, or at the agent.
        """
        if not self.fresh or self.waiting < MIN_WAITING or self.net_s < self.queued_s:
            return False
        return self.net_s / self.fresh > QUEUED_ON_WIRE * self.shortest_net_s + NET_JITTER_S


@dataclass(frozen=True)
class Conditions:
    """Current rates of the resources.

    Example:
        >>> now = Conditions.at_first(loader_cores=2.0, agent_cores=4.0).after(window)
        >>> now.rates.wire_bytes_s
        11800000.0

    Args:
        rates: of GPU, wire and cores.
        max_loader_cores: cores that the loader may use.
        disk_bytes_s: rate at which the agent gets files from its disk.
        agent_speed: share of the agent's promised cores that work there gets, in (0, 1].
        per_worker: cores that the agent has for each of its workers; 0 before it has answered.
        growth: share by which the wire is tried next.
        wire_held_bytes_s: the wire's rate when it last held replies up; 0 if never. Higher rates are tried.
        max_agent_cores: cores that may be planned for the agent; one on this host promises cores that the loader uses.
        files_here: the loader reads files that would cross whole itself: no wire, no agent, and not its disk.
    """

    rates: Rates
    max_loader_cores: float
    disk_bytes_s: float = math.inf
    agent_speed: float = 1.0
    per_worker: float = 0.0
    growth: float = GROWTH
    wire_held_bytes_s: float = 0.0
    max_agent_cores: float = math.inf
    files_here: bool = False

    @property
    def wire_seen(self) -> bool:
        """True if the wire has ever held replies up; before, its rate is a guess."""
        return self.wire_held_bytes_s > 0

    @staticmethod
    def at_first(loader_cores: float, agent_cores: float) -> Conditions:
        """Return the conditions before any measurement.

        Args:
            loader_cores: cores that the loader's processes may use.
            agent_cores: cores of the agent.
        """
        rates = Rates(math.inf, LIKELY_WIRE_BYTES_S, loader_cores, max(agent_cores, MIN_CORES))
        return Conditions(rates, loader_cores)

    def with_wire(self, bytes_s: float) -> Conditions:
        """Return them with the wire's rate of an earlier run."""
        return self._with_wire(bytes_s, GROWTH)

    def after(self, window: MeasuredWindow) -> Conditions:
        """Return them after a window; one without samples changes nothing."""
        if window.samples <= 0 or window.seconds <= 0:
            return self
        rates = replace(self.rates, gpu_samples_s=window.gpu_samples_s)
        if window.loader_cpu_s > MIN_WORK_S and window.busy_s > 0:
            cores = max(MIN_CORES, min(window.loader_cores, self.max_loader_cores))
            rates = replace(rates, loader_cores=_mean(rates.loader_cores, cores))
        per_worker = window.per_worker or self.per_worker
        speed = self._speed(window, per_worker)
        if window.agent_cores > 0:
            promised = min(window.agent_cores, self.max_agent_cores)
            rates = replace(rates, agent_cores=max(MIN_CORES, speed * promised))
        now = replace(self, rates=rates, agent_speed=speed, per_worker=per_worker, disk_bytes_s=self._disk(window))
        return now._after_wire(window)

    def _disk(self, window: MeasuredWindow) -> float:
        known = self.disk_bytes_s
        if not (window.read_s > 0 and window.read_bytes > 0):
            return known
        has_s = window.agent_cores * window.seconds
        if has_s > 0 and (has_s < MIN_SHARED_CPU_S or window.agent_cpu_s > (1 - SPARE_CPU) * has_s):
            return max(known * RECOVERY, window.read_bytes / window.seconds)
        # Readers that together waited longer than the window has lasted had the disk busy all the time.
        return _mean(known, window.read_bytes / min(window.read_s, window.seconds))

    def _speed(self, window: MeasuredWindow, per_worker: float) -> float:
        if window.work_cpu_s < MIN_WORK_S:
            return min(1.0, self.agent_speed * RECOVERY)
        # What the agent's own upkeep has taken meanwhile was not lost to others: it is counted with every sample.
        at_work_s = max(window.work_s, MIN_WORK_S)
        alone = min(1.0, window.work_cpu_s / at_work_s)
        got = alone * (1 + window.upkeep_s / at_work_s)
        # What a quota leaves to each worker slows its work down, and is counted in what is promised already.
        return min(1.0, _mean(self.agent_speed, min(1.0, got / (per_worker or 1.0))))

    def _after_wire(self, window: MeasuredWindow) -> Conditions:
        got, known = window.wire_bytes / window.seconds, self.rates.wire_bytes_s
        if window.held_up_by_wire:
            # Not the mean with what was tried: that may be many times what the wire has, and was never seen.
            held = self.wire_held_bytes_s
            return self._with_wire(got if got > WIDER * held else _mean(held, got), GROWTH)
        if not self.wire_seen:
            # While nothing is offloaded, that little crosses it says nothing.
            least = max(known / RECOVERY, LEAST_WIRE_BYTES_S) if window.work_cpu_s > MIN_WORK_S else known
            return self._trying(max(least, BORNE_UNSEEN * got), self.growth)
        tried, most = known * (1 + self.growth), max(known, BORNE * got)
        growth = min(2 * self.growth, MAX_GROWTH) if tried <= most else self.growth
        return self._trying(max(min(tried, most), got), growth)

    def _trying(self, bytes_s: float, growth: float) -> Conditions:
        rates = replace(self.rates, wire_bytes_s=min(bytes_s, MAX_WIRE_BYTES_S))
        return replace(self, rates=rates, growth=growth)

    def _with_wire(self, bytes_s: float, growth: float) -> Conditions:
        if not 0 < bytes_s < math.inf:
            return self
        return replace(self, rates=replace(self.rates, wire_bytes_s=bytes_s), growth=growth, wire_held_bytes_s=bytes_s)


class Guard:
    """Compares a tariff with the measured rate without offloading, and goes back to files while they give more.

    A tariff that gives less than the model's rate without offloading is doubted: files are requested for some windows,
    and their rate is measured. If it was higher, the next time is twice as long. If not, the model was wrong about
    files, and the tariff is doubted only after twice as many windows. A tariff that promises far more than all doubted
    ones is followed at once.

    Example:
        >>> guard = Guard()
        >>> guard.after(samples_s=100.0, tariff=tariff, rows=64)
        >>> guard.must_not_offload
        False
    """

    def __init__(self) -> None:
        self._doubts = 0  # windows in a row in which the tariff gave too little
        self._patience = DOUBTED_FOR
        self._held = 0  # windows for which files are still asked for
        self._hold = HELD_FIRST
        self._offloading_s = math.inf  # samples/s while offloading
        self._files_s = math.inf  # and while not; inf while that is not known
        self._promised = 0.0  # times what files give, the most by a tariff that has been doubted

    @property
    def must_not_offload(self) -> bool:
        """True if files are to be requested under any tariff."""
        return self._held > 0

    def after(self, samples_s: float, tariff: Tariff, rows: int) -> None:
        """Add a window.

        Args:
            samples_s: its rate.
            tariff: the current one.
            rows: number of samples that it was computed from.
        """
        promised = _promise_of(tariff)
        if self._held > 0:
            if promised > ANOTHER * self._promised:
                self._held, self._doubts, self._promised, self._offloading_s = 0, 0, promised, math.inf
                return
            if self._held < self._hold:  # in the first one, replies to requests of before were still coming
                self._files_s = _mean(self._files_s, samples_s)
            self._held -= 1
            if not self._held:
                self._compare()
            return
        if not tariff.offloads or tariff.without is None or not tariff.without.seconds > 0:
            self._doubts = 0
            return
        self._offloading_s = _mean(self._offloading_s, samples_s)
        expected_s = rows / tariff.without.seconds
        self._doubts = self._doubts + 1 if samples_s < DOUBTED_BELOW * expected_s else 0
        if self._doubts >= self._patience:
            self._held, self._files_s = self._hold, math.inf
            self._promised = max(self._promised, promised)

    def _compare(self) -> None:
        """Compare the rates with files and with the tariff, after files were requested."""
        self._doubts = 0
        if self._files_s > MUST_GAIN * self._offloading_s:
            self._hold, self._patience = min(2 * self._hold, HELD_MOST), DOUBTED_FOR
        else:
            self._hold, self._patience = HELD_FIRST, min(2 * self._patience, PATIENCE_MOST)
            self._promised = 0.0
        self._offloading_s = math.inf


def _promise_of(tariff: Tariff) -> float:
    """Return the factor in samples/s that a tariff promises over plain loading."""
    if not tariff.offloads or tariff.predicted is None or tariff.without is None or not tariff.predicted.seconds > 0:
        return 1.0
    return tariff.without.seconds / tariff.predicted.seconds


def _mean(known: float, now: float) -> float:
    """Return the geometric mean: a rate that falls to a twentieth is found as soon as one that rises twentyfold."""
    if now == known or not (math.isfinite(known) and known > 0 and 0 < now < math.inf):
        return now
    change = math.log(now) - math.log(known)
    weight = WEIGHT if abs(change) < math.log(2) else WEIGHT_OF_CHANGE
    return math.exp(math.log(known) + weight * change)
