"""What the resources give at this moment, from what the last second or two have shown. No clock, no I/O.

| resource | measured as | when nothing shows it |
| --- | --- | --- |
| GPU | samples/s of the time for which the training did not wait for batches | unlimited |
| loader CPU | CPU s per s at work, times the processes, less what they idle while the training waits | as before |
| agent CPU | cores that it promises, times the share of them that work there gets | comes back by a seventh a window |
| wire | bytes/s while workers waited for replies behind others | is tried with 1 %, 2 % ... more, to twice what came |
| disk of the agent | bytes/s while files were read | as before; where reads wait for CPU, comes back by a seventh |

Every window of samples measures loader and agent anew, whatever the plan, so neither can be stuck at what a bad moment
has shown. Only the wire has to be tried: a loader that does not fill it cannot know how wide it is. Before it has held
anything up it counts as four times what crosses it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sophon_loader.decide.facts import Rates
from sophon_loader.decide.tariff import Tariff

MIN_WAITING = 0.1
"""Share of their time for which workers must have waited for replies, for the wire to be what held them up."""
QUEUED_ON_WIRE = 1.3
"""A reply that was on its way for so many times the shortest lay behind others: the wire was busy all the time. Where
twice as much is asked for as the wire holds, it is 2 times."""
NET_JITTER_S = 0.004
"""Seconds by which replies are late for reasons of their own: a scheduler's time slice or two."""
WEIGHT = 0.5
"""Of the newest window in the logarithm of a rate. Windows are about a second long: a change to a half is known within
a tenth after three."""
WEIGHT_OF_CHANGE = 0.85
"""The same where a window shows less than half or more than twice: that is no scatter."""
GROWTH = 0.01
"""By how much the wire is first tried beyond what it has shown; doubled with each window that bears it."""
MAX_GROWTH = 1.0
BORNE = 2.0
"""Times what crosses it, up to which a wire is tried that has held something up: while a plan leaves it idle nothing
shows that it bears more, and the plan would end up being made for a thousand times what it has."""
WIDER = 1.1
"""Times what the wire gave before, at which more that came is no scatter."""
LIKELY_WIRE_BYTES_S = 12.5e6
"""What a wire gives that nobody has seen: 100 Mbit/s."""
BORNE_UNSEEN = 2.0
"""Times what crosses it, that a wire is believed to bear before it has held anything up. If a plan wants more, a
hundred times as much is reached within seven windows of a quarter of a second; of more than twice, what is asked for
until the next window takes the place of a batch or two on a wire that is full by then."""
LEAST_WIRE_BYTES_S = 0.125e6
"""Such a wire is not believed to be narrower: 1 Mbit/s."""
RECOVERY = 1.15
"""Times per window by which the agent's cores are believed to come back while nothing runs there, and its disk while
what is read waits for CPU; and by which less of a wire is believed in that nobody has seen, and that is hardly used."""
MAX_WIRE_BYTES_S = 1e12
"""Beyond any wire; a rate that nothing contradicts stays finite."""
MIN_WORK_S = 0.003
"""CPU seconds that say how fast a core is: of fewer, a single time slice decides."""
SPARE_CPU = 0.2
"""Share of the agent's cores that must be idle for the time of a read to be the disk's: else it waits for CPU, too."""
MIN_SHARED_CPU_S = 0.05
"""CPU seconds of the agent in a window of which such a share can be told: of fewer, a batch more or less decides."""
MIN_CORES = 1e-3
DOUBTED_BELOW = 0.95
"""Of what the model says of not offloading. Windows scatter by a few percent."""
DOUBTED_FOR = 3
"""Windows in a row, so that a pause of the training (a checkpoint, an evaluation) is no reason."""
PATIENCE_MOST = 48
HELD_FIRST = 3
"""Windows for which files are tried: one until what was asked for before has come, and two to measure."""
HELD_MOST = 96
MUST_GAIN = 1.03
"""Times as many images/s that files must have given, to be kept."""
ANOTHER = 1.3
"""Times what a tariff that was doubted had promised, from which on one is another: something has changed."""


@dataclass(frozen=True)
class MeasuredWindow:
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
        upkeep_s: CPU seconds of the agent for anything else.
        agent_cpu_s: all CPU seconds of the agent, those of reading among them.
        read_bytes, read_s: bytes and seconds of reading files there.
        fresh: replies that came while a worker waited.
        net_s: seconds that those were neither queued, read nor worked on, all together.
        queued_s: seconds that those waited at the agent, all together.
        gpu_samples_s: of the training step; inf while that is not known.
        agent_cores: that the agent promised; 0 while it has said nothing.
        per_worker: that it has for each of its workers, all at work; 0 while it has said nothing.
        shortest_net_s: the shortest time that a reply of this iteration was on its way; inf before one came.
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
        """Cores that the loader had.

        While the training waits for batches, a worker that neither works nor waits for a reply is handing a batch over,
        or is behind its turn: that time is lost. While the training does not wait, there is nothing to be done.
        """
        idle = max(0.0, 1 - self.waiting - self.busy_s / (self.seconds * self.processes))
        return self.processes * min(1.0, self.loader_cpu_s / self.busy_s) * (1 - idle * self.awaited)

    @property
    def held_up_by_wire(self) -> bool:
        """Whether workers waited for replies that lay behind others on their way.

        Of what is asked for ahead, most lies where it is held up: there, or at the agent.
        """
        if not self.fresh or self.waiting < MIN_WAITING or self.net_s < self.queued_s:
            return False
        return self.net_s / self.fresh > QUEUED_ON_WIRE * self.shortest_net_s + NET_JITTER_S


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
        disk_bytes_s: at which the agent gets files from its disk.
        agent_speed: share of the cores that the agent promises that work there gets, in (0, 1].
        per_worker: cores that the agent has for each of its workers; 0 before it has said so.
        growth: by how much the wire is tried next.
        wire_held_bytes_s: what the wire gave when it held replies up; 0 before it ever has. Its rate is tried beyond.
        max_agent_cores: that may be planned for the agent; one on this host promises cores that the loader uses.
        files_here: what would cross as a file is read by the loader itself: no wire, no agent, and not its disk.
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
        """Whether the wire has ever held replies up; before, its rate is a guess."""
        return self.wire_held_bytes_s > 0

    @staticmethod
    def at_first(loader_cores: float, agent_cores: float) -> Conditions:
        """Before anything was measured.

        Args:
            loader_cores: that the loader's processes may use.
            agent_cores: that the agent has.
        """
        rates = Rates(math.inf, LIKELY_WIRE_BYTES_S, loader_cores, max(agent_cores, MIN_CORES))
        return Conditions(rates, loader_cores)

    def with_wire(self, bytes_s: float) -> Conditions:
        """With the wire as an earlier run has found it."""
        return self._with_wire(bytes_s, GROWTH)

    def after(self, window: MeasuredWindow) -> Conditions:
        """After a window; one without samples changes nothing."""
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
    """Holds a tariff to what not offloading was measured to give, and goes back to that while it gives more.

    A tariff that gives less than the model says of not offloading is not believed: files are asked for, for some
    windows, and what they give is measured. If that was more, the next time is twice as long; if not, the model was
    wrong about files, and the tariff is doubted only after twice as many windows. One that meanwhile promises far more
    than all that have disappointed is followed at once.

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
        """Whether to ask for files, whatever the tariff."""
        return self._held > 0

    def after(self, samples_s: float, tariff: Tariff, rows: int) -> None:
        """A window has passed.

        Args:
            samples_s: what it gave.
            tariff: what is worked out now.
            rows: samples that it was worked out from.
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
        """Files have been asked for; which of the two was better?"""
        self._doubts = 0
        if self._files_s > MUST_GAIN * self._offloading_s:
            self._hold, self._patience = min(2 * self._hold, HELD_MOST), DOUBTED_FOR
        else:
            self._hold, self._patience = HELD_FIRST, min(2 * self._patience, PATIENCE_MOST)
            self._promised = 0.0
        self._offloading_s = math.inf


def _promise_of(tariff: Tariff) -> float:
    """Times as many images/s as without offloading."""
    if not tariff.offloads or tariff.predicted is None or tariff.without is None or not tariff.predicted.seconds > 0:
        return 1.0
    return tariff.without.seconds / tariff.predicted.seconds


def _mean(known: float, now: float) -> float:
    """The geometric mean: a rate that falls to a twentieth is found as soon as one that rises to twenty times."""
    if now == known or not (math.isfinite(known) and known > 0 and 0 < now < math.inf):
        return now
    change = math.log(now) - math.log(known)
    weight = WEIGHT if abs(change) < math.log(2) else WEIGHT_OF_CHANGE
    return math.exp(math.log(known) + weight * change)
