"""Stage 1: an epoch's use of GPU, wire, loader CPU and agent CPU, and its conclusions for their rates.

`revised` goes through these rules in this order; where one changes a rate, the later ones see the new value. "Waited"
is the share of their time for which the loader's workers waited for replies, "queued" the share of their turnaround for
which offloaded samples waited for a worker of the agent. "Late" is the part of "waited" in which replies waited for one
another; the rest is latency while too little was asked for ahead, which is no resource's limit.

| the epoch showed | rate that is revised | why |
| --- | --- | --- |
| steps of the training | GPU: what the step clock says | it is measured directly |
| more work than a rate allows in that time | that rate: what was done | it was too low |
| waited < 0.6, not held up by the training step | loader: CPU s per s not waited | it works whenever it does not wait |
| otherwise, if the loader's may rise | loader: the same, if that is more | good enough for hope, see below |
| queued < 0.5, if the agent's may rise | agent: `growth` times, as far as offered | it was free more often than not |
| late >= 0.3, queued > 0.8 | agent: what it did | replies were late, and the agent's workers the reason |
| late >= 0.3, queued less, wire near its rate | wire: what it brought | replies were late, not by the agent's fault |
| late >= 0.6, queued less | wire: what it brought | nothing but replies held the loader up |

The loader may get less than the cores it may use, since the training process needs some too. An epoch that mostly waits
is no reason to lower its rate, only to raise it. A worker that mostly sleeps gets its core whenever it wakes up, and
several that take turns have each had all of it.

Two rates may rise without proof. If one that was learnt in a bad moment could not, it would keep the plan from using
that resource, and so never be proved wrong. The class `healing.Healing` decides when they may, and watches the results.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from sophon_loader.decide.facts import Rates
from sophon_loader.plans.probes import UpkeepCosts

# The shares below are judgements, not measurements. What they do to whole runs is played through in
# tests/unit/plans/test_recovery.py, and is measured by bench.live (docs/results.md).
HELD_UP_BY_REPLIES_FROM = 0.3
"""Share of its time from which on a loader that waits for replies counts as held up by them. Some waiting is left in
every
epoch: at its start, and where one batch has larger samples than another."""
HELD_UP_BY_NOTHING_ELSE_FROM = 0.6
"""Share of its time from which on a loader that waits is held up by replies and nothing else. Between the two shares
the loader may be the limit as well, so the wire is blamed only if it also ran near its known rate
(`NEAR_LIMIT_FROM`)."""
NEAR_LIMIT_FROM = 0.9
"""Share of an epoch from which on a resource in use may be its limit. Start-up, the last batch and the scatter of rates
take the rest."""
HELD_UP_BY_STEP_FROM = 0.7
"""Share of an epoch from which on a training step holds the loader up, which then works less than it could."""
AGENT_IS_LIMIT_FROM = 0.8
"""Share of their turnaround in the agent's queue, above which its workers limit offloaded samples. On a slow wire that
the workers keep up with, replies wait behind others, and the queue has the smaller part."""
AGENT_IS_FREE_BELOW = 0.5
"""Share below which the agent was free more often than not: it can do more than it was asked for."""
GROWTH = 1.5
"""Factor of the agent's known cores that is tried first. If they do not exist, an epoch planned with them takes at most
this many times as long."""
MAY_RISE = frozenset({"loader_cores", "agent_cores"})
"""Names of the rates that may rise without proof."""
_BOTTLENECKS = {
    "gpu_samples_s": "gpu",
    "wire_bytes_s": "wire",
    "loader_cores": "loader-cpu",
    "agent_cores": "agent-cpu",
}


@dataclass(frozen=True)
class EpochMeasure:
    """Measurements of an epoch, or of one pass of an endless one.

    Example:
        >>> epoch = EpochMeasure(10.0, 1000, 50e6, 8.0, 6.0, math.inf, waiting=0.8, queueing=0.1)
        >>> revised(Rates(math.inf, 10e6, 2.0, 4.0), epoch).wire_bytes_s
        5000000.0

    Args:
        seconds: from its first request to its last batch.
        samples: delivered.
        wire_bytes: received.
        loader_cpu_s, agent_cpu_s: CPU seconds of the loader's workers, and of the agent as it reports them.
        gpu_samples_s: samples/s of the training step; inf if unmeasured.
        waiting: share of their time for which the loader's workers waited for replies; 0 to 1, or NaN.
        queueing: share of their turnaround for which offloaded samples waited for a worker of the agent; 0 to 1, or
            NaN.
        offloaded: number of samples that had ops run at the agent.
        upkeep_s: the agent's CPU seconds for each sample apart from reading, ops and encoding.
        starving: the part of `waiting` in which more could have been on its way, had torch handed out more batches.
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
    upkeep_s: UpkeepCosts = field(default_factory=UpkeepCosts)
    starving: float = 0.0

    @property
    def late(self) -> float:
        """Share of their time for which the workers waited for replies that waited for one another."""
        return self.waiting - self.starving

    def used(self, rates: Rates) -> dict[str, float]:
        """Return the seconds that each resource needed for this epoch's work at `rates`, by the rate's name."""
        return {
            "gpu_samples_s": self.samples / rates.gpu_samples_s,
            "wire_bytes_s": self.wire_bytes / rates.wire_bytes_s,
            "loader_cores": self.loader_cpu_s / rates.loader_cores,
            "agent_cores": self.agent_cpu_s / rates.agent_cores,
        }

    def bottleneck(self, rates: Rates) -> str:
        """Return the resource that this epoch needed longest at `rates`: gpu, wire, loader-cpu or agent-cpu."""
        used = self.used(rates)
        return _BOTTLENECKS[max(used, key=lambda name: used[name])]


def revised(
    rates: Rates,
    epoch: EpochMeasure,
    max_loader_cores: float = math.inf,
    offered_agent_cores: float = 0.0,
    may_rise: Collection[str] = MAY_RISE,
    growth: float = GROWTH,
) -> Rates:
    """Return the rates after an epoch, by the rules in this module's docstring.

    Args:
        rates: those before.
        epoch: its measurements. One without samples or without a length changes nothing.
        max_loader_cores: cores that the loader may use.
        offered_agent_cores: cores that the agent offers; with 0 its rate does not rise without proof.
        may_rise: names of the rates that may rise without proof.
        growth: factor of its cores that the agent is given without proof, > 1.
    """
    if epoch.samples <= 0 or epoch.seconds <= 0:
        return rates
    rates = replace(rates, gpu_samples_s=epoch.gpu_samples_s)
    used = epoch.used(rates)
    for name in ("wire_bytes_s", "agent_cores", "loader_cores"):
        if used[name] > epoch.seconds:
            rates = _with(rates, name, getattr(rates, name) * used[name] / epoch.seconds)
    # If too few steps have been seen to measure them, they may have held it up as well.
    held_up_by_step = used["gpu_samples_s"] > HELD_UP_BY_STEP_FROM * epoch.seconds or math.isinf(epoch.gpu_samples_s)
    if epoch.waiting < 1:
        working = min(epoch.loader_cpu_s / (epoch.seconds * (1 - epoch.waiting)), max_loader_cores)
        is_proof = epoch.waiting < HELD_UP_BY_NOTHING_ELSE_FROM and not held_up_by_step
        if is_proof or ("loader_cores" in may_rise and working > rates.loader_cores):
            rates = _with(rates, "loader_cores", working)
    if "agent_cores" in may_rise and epoch.queueing < AGENT_IS_FREE_BELOW:
        tried = min(growth * rates.agent_cores, offered_agent_cores)
        rates = _with(rates, "agent_cores", max(rates.agent_cores, tried))
    if not epoch.late >= HELD_UP_BY_REPLIES_FROM:  # so that NaN shows nothing
        return rates
    if epoch.queueing > AGENT_IS_LIMIT_FROM:
        return _with(rates, "agent_cores", epoch.agent_cpu_s / epoch.seconds)
    near_limit = math.isinf(rates.wire_bytes_s) or used["wire_bytes_s"] >= NEAR_LIMIT_FROM * epoch.seconds
    if near_limit or epoch.late >= HELD_UP_BY_NOTHING_ELSE_FROM:
        return _with(rates, "wire_bytes_s", epoch.wire_bytes / epoch.seconds)
    return rates


def _with(rates: Rates, name: str, value: float) -> Rates:
    """Return `rates` with another value, unless that is invalid: the agent's own seconds may be wrong."""
    return replace(rates, **{name: value}) if 0 < value < math.inf else rates
