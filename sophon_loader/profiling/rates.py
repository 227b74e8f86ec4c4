"""Stage 1: what GPU, wire, loader CPU and agent CPU can do, and how that changes from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from sophon_loader.decide.facts import Rates
from sophon_loader.profiling.guard import Retry

_WAITING = 0.3
"""A loader that waits for replies for less than this share of its time is not held up by them."""
_WAITING_LONG = 0.6
"""One that waits for more than this is held up by nothing else."""
_NEAR = 0.9
"""A resource that is in use for this share of an epoch may be its limit."""
FASTER = 1.1
"""A rate of more than this times another one is another rate; less is noise, as in `decide.cost.moved`."""
_HELD_UP = 0.7
"""A training step that takes this share of an epoch holds the loader up."""
_QUEUEING = 0.8
"""Offloaded samples that spend more of their turnaround in the agent's queue show that its workers are the limit."""
_HARDLY_QUEUEING = 0.5
"""Those that spend less there find the agent free more often than not: it can do more than it was asked for."""
_IN_USE = 0.5
"""A resource that was used for this share of an epoch was put to the test: what was hoped of it is not just unused."""
GROWTH = 1.5
"""What the agent's cores are tried to be, of what they are known to be. A plan that counts on them makes its epoch at
most this many times longer if it is wrong."""
_MAX_GROWTH = 12.0
"""Of 1.5, 3, 6, 12: enough from a hundredth of the cores, the least that a quota can be, to all of them."""
HOPED = frozenset({"loader_cores", "agent_cores"})
"""Names of the rates that may rise without proof."""


@dataclass(frozen=True)
class EpochMeasure:
    """What an epoch used: seconds, samples, bytes received, CPU seconds on either side, and the step clock's rate.

    `offloaded` counts samples that had ops run at the agent. `upkeep_s` holds the agent's CPU seconds beside reading,
    ops and encoding, of a file and of an offloaded sample; 0 when there were none. `waiting` is the share of their time
    for which the loader's workers waited for replies, `queueing` the share of their turnaround for which offloaded
    samples waited for a worker of the agent; both in [0, 1].
    """

    seconds: float
    samples: int
    wire_bytes: float
    loader_cpu_s: float
    agent_cpu_s: float
    gpu_samples_s: float
    waiting: float
    queueing: float
    offloaded: int = 0
    upkeep_s: tuple[float, float] = (0.0, 0.0)

    def used(self, rates: Rates) -> dict[str, float]:
        """Seconds each resource needed for this epoch's work at `rates`."""
        return {
            "gpu_samples_s": self.samples / rates.gpu_samples_s,
            "wire_bytes_s": self.wire_bytes / rates.wire_bytes_s,
            "loader_cores": self.loader_cpu_s / rates.loader_cores,
            "agent_cores": self.agent_cpu_s / rates.agent_cores,
        }


def revised(
    rates: Rates,
    epoch: EpochMeasure,
    most_loader_cores: float = math.inf,
    offered_agent_cores: float = 0.0,
    hoped: Collection[str] = HOPED,
    growth: float = GROWTH,
) -> Rates:
    """The rates after an epoch: what it proves wrong is replaced by what it showed, and what it leaves open may rise.

    A resource that did more than its rate allows has a higher one. A loader that waited for replies for long was held
    up by wire or agent, which then ran at its rate: the agent, if samples spent most of their turnaround in its queue,
    else the wire. One that waited for a part of the epoch says so only of a wire that is known to be near its limit.

    A loader works for as long as it does not wait, unless the training step holds it up: the CPU seconds per second of
    that time are the cores it has. They may be fewer than it may use, since the training process needs some too.

    A rate that was learnt in a bad moment would keep the plan from using that resource, and so never be proved wrong.
    Hence two rates rise without proof, and it is for `Healing` to watch how that ends:

    - the loader's cores to those of its working time also in an epoch that waited for long, or was held up by the
      training step. They are no reason to lower them: a worker that mostly sleeps gets its core when it wakes up, and
      several workers that take turns have had all of it each.
    - the agent's cores by `growth`, up to what it offers, while samples spend less than half of their turnaround in its
      queue, and also when none were offloaded.

    Args:
        most_loader_cores: cores that the loader may use.
        offered_agent_cores: cores that the agent offers; 0: its cores do not rise without proof.
        hoped: names of the rates that may rise without proof.
        growth: of the agent's cores, > 1.
    """
    if epoch.samples <= 0 or epoch.seconds <= 0:
        return rates
    rates = replace(rates, gpu_samples_s=epoch.gpu_samples_s)
    used = epoch.used(rates)
    for name in ("wire_bytes_s", "agent_cores", "loader_cores"):
        if used[name] > epoch.seconds:
            rates = _with(rates, name, getattr(rates, name) * used[name] / epoch.seconds)
    # Steps too few to be measured may have held it up as well.
    held_up = used["gpu_samples_s"] > _HELD_UP * epoch.seconds or math.isinf(epoch.gpu_samples_s)
    if epoch.waiting < 1:
        working = min(epoch.loader_cpu_s / (epoch.seconds * (1 - epoch.waiting)), most_loader_cores)
        proved = epoch.waiting < _WAITING_LONG and not held_up
        if proved or ("loader_cores" in hoped and working > rates.loader_cores):
            rates = _with(rates, "loader_cores", working)
    if "agent_cores" in hoped and epoch.queueing < _HARDLY_QUEUEING:
        tried = min(growth * rates.agent_cores, offered_agent_cores)
        rates = _with(rates, "agent_cores", max(rates.agent_cores, tried))
    if not epoch.waiting >= _WAITING:
        return rates
    if epoch.queueing > _QUEUEING:
        return _with(rates, "agent_cores", epoch.agent_cpu_s / epoch.seconds)
    near = math.isinf(rates.wire_bytes_s) or used["wire_bytes_s"] >= _NEAR * epoch.seconds
    if near or epoch.waiting >= _WAITING_LONG:
        return _with(rates, "wire_bytes_s", epoch.wire_bytes / epoch.seconds)
    return rates


class Healing:
    """Decides which rates may rise without proof after an epoch, and how far, by how earlier such rises have ended.

    A rise ends badly when a later epoch lowers the rate again. Then the rate stays where it was for 1 epoch, the next
    time for 2, 4, ... at most 16 epochs, so that a resource that is really slower than it looks when idle costs few
    epochs. It ends well when an epoch makes use of the resource and does not lower the rate; then the pauses start from
    1 again. A rise that is not put to the test changes nothing.

    Every epoch that makes use of the agent and finds it free doubles the factor by which its cores grow: from a
    hundredth of them to all it takes three such epochs in a row, not eleven. One that lowers them sets the factor back,
    and as long as the last rise has ended badly it stays there: a first wrong try of a low rate can make an epoch 3
    times longer, each further one 1.5 times.
    """

    def __init__(self) -> None:
        self._retries = {name: Retry() for name in sorted(HOPED)}
        self._untested: set[str] = set()
        self._growth = GROWTH

    def revised(
        self,
        rates: Rates,
        epoch: EpochMeasure,
        most_loader_cores: float,
        offered_agent_cores: float,
        *,
        planned: bool,
    ) -> Rates:
        """As the function of that name. To be called for every epoch, with the rates that it gave for the last one.

        Args:
            planned: whether the policy's own plan was followed. Otherwise the agent's cores rise once, but not again
                before that has been put to the test: in many epochs in which nothing may be offloaded, they would
                become all that it offers, and the first plan after them would be far from what is known.
        """
        proved = revised(rates, epoch, most_loader_cores, hoped=())
        for name, shown_s in _shown(epoch).items():
            before, after = getattr(rates, name), getattr(proved, name)
            free = name != "agent_cores" or (epoch.queueing < _HARDLY_QUEUEING and epoch.offloaded > 0)
            tested = free and shown_s >= _IN_USE * before * epoch.seconds
            if name == "agent_cores":
                self._set_growth(lowered=after < before, tested=tested)
            self._judge(name, lowered=after * FASTER < before, tested=tested)
        hoped = {name for name, retry in self._retries.items() if retry.due}
        if not planned and "agent_cores" in self._untested:
            hoped.discard("agent_cores")
        found = revised(rates, epoch, most_loader_cores, offered_agent_cores, hoped, self._growth)
        self._untested.update(name for name in HOPED if getattr(found, name) > getattr(proved, name))
        return found

    def _set_growth(self, *, lowered: bool, tested: bool) -> None:
        if lowered:
            self._growth = GROWTH
        elif tested and (self._retries["agent_cores"].fresh or "agent_cores" in self._untested):
            self._growth = min(2 * self._growth, _MAX_GROWTH)

    def _judge(self, name: str, *, lowered: bool, tested: bool) -> None:
        retry = self._retries[name]
        if name in self._untested and (lowered or tested):
            self._untested.discard(name)
            (retry.failed if lowered else retry.succeeded)()
        else:
            retry.passed()


def _shown(epoch: EpochMeasure) -> dict[str, float]:
    """CPU seconds of the rates that may rise without proof."""
    return {"agent_cores": epoch.agent_cpu_s, "loader_cores": epoch.loader_cpu_s}


def wire_may_do_more(before: Rates, after: Rates, epoch: EpochMeasure) -> bool:
    """Whether an epoch has shown that the wire is faster than was known before, but not how fast it is."""
    return after.wire_bytes_s > FASTER * before.wire_bytes_s and not epoch.waiting >= _WAITING_LONG


def _with(rates: Rates, name: str, value: float) -> Rates:
    """`rates` with another value, unless that is none: the agent's times are what it says they are."""
    return replace(rates, **{name: value}) if 0 < value < math.inf else rates
