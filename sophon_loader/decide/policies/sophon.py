"""SOPHON's policy, as published (HotStorage '24, offloading policy).

Act only if the wire is the bottleneck without offloading. A sample's cut is the stage at which it is smallest. Its
offloading efficiency is the bytes that this saves per second of preprocessing that moves to the agent. Take samples by
falling efficiency, updating the epoch's time on each resource, until the wire is no longer the busiest, or no sample
with a positive efficiency is left.

Three things that the paper leaves open are settled here. The agent's cost of reading the file is paid with or without
offloading, so it is not counted as offloaded work. The last sample taken may carry the agent past the time the wire had
needed; it is then left out, so that the plan is never slower than no offloading. And an agent that reports next to no
CPU (`OFFLOADS_FROM_CORES`) counts as one without CPU: the little it could make would delay the files behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.cost import EpochTime, epoch_time, time_without_offloading
from sophon_loader.decide.facts import (
    BLOCK,
    FILE,
    OFFLOADS_FROM_CORES,
    PAPER_ENCODINGS,
    ChoiceTable,
    Facts,
    Rates,
    blocks,
)
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policies.common import measured, same_for_all, unprofiled
from sophon_loader.decide.words import resource
from sophon_loader.errors import PlanError


class Sophon:
    """Offload the samples that save most bytes per agent second, while the wire is the bottleneck.

    Args:
        stage_one_steps: training steps after which the loader decides if I/O limits; it measures samples only then, as
            published. 0: it measures them from the first one on, which costs little, so that an epoch later there is a
            plan for any bottleneck.

    Raises:
        PlanError: `stage_one_steps` is negative.

    Example:
        >>> loader = OffloadingDataLoader(dataset, agent="tcp://storage:5555/pictures", policy=Sophon(50))
    """

    name = "sophon"
    needs_profile = True

    def __init__(self, stage_one_steps: int = 0) -> None:
        if stage_one_steps < 0:
            raise PlanError(f"stage_one_steps must be >= 0, got {stage_one_steps}; 50 are enough to tell what limits")
        self.stage_one_steps = stage_one_steps

    def plan(self, facts: Facts) -> Plan:
        """Choose by the paper's greedy; with ties in efficiency the smaller index goes first."""
        idle = unprofiled(self.name, facts)
        if idle is not None:
            return idle
        table = measured(facts)
        base = time_without_offloading(table, facts.rates)
        if base.bottleneck != "wire":
            why = f"{resource(base.bottleneck)} limits, not the network: nothing is offloaded"
            return same_for_all(self.name, facts, FILE, why)
        if facts.offered_cores < OFFLOADS_FROM_CORES:
            why = f"the agent has next to no CPU ({facts.offered_cores:.2g} cores): nothing is offloaded"
            return same_for_all(self.name, facts, FILE, why)
        smallest = smallest_choices(table)
        order = by_efficiency(table, smallest)
        taken, stop = _greedy(table, facts.rates, smallest, order)
        chosen = np.zeros(facts.samples, dtype=np.uint8)
        chosen[order[:taken]] = smallest[order[:taken]]
        reason = (
            f"without offloading the network limits; of {len(order)} samples that shrink {taken} are offloaded, "
            f"and {stop}"
        )
        return Plan(
            self.name,
            table.choices,
            chosen,
            reason + facts.caveats(),
            epoch_time(table, chosen, facts.rates),
        )


def smallest_choices(table: ChoiceTable) -> NDArray[np.uint8]:
    """Return uint8[N]: each sample's smallest choice in the paper's encodings; of equal ones the first."""
    best = np.zeros(table.samples, dtype=np.uint8)
    allowed = [c for c, choice in enumerate(table.choices) if c and choice.encoding in PAPER_ENCODINGS]
    for part, (wire, _, _) in table.parts():
        least = wire[:, 0].copy()
        for column in allowed:
            size = wire[:, column]
            np.copyto(best[part], column, where=size < least, casting="unsafe")
            np.minimum(least, size, out=least)
    return best


def by_efficiency(table: ChoiceTable, smallest: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Return the samples with positive efficiency, most efficient first.

    Efficiency = (file bytes - smallest choice's bytes) / (agent seconds to reach it - agent seconds to read the file);
    infinite if it takes no extra time.

    Args:
        table: N samples.
        smallest: uint8[N], as `smallest_choices` returns.

    Returns:
        uint32[M] sample indices, M <= N.
    """
    shrinking = np.flatnonzero(smallest).astype(np.uint32)
    negated = np.empty(len(shrinking), dtype=np.float32)
    for part in blocks(len(shrinking)):
        steps = _steps(table, smallest, shrinking[part])
        with np.errstate(divide="ignore", over="ignore"):
            negated[part] = steps.wire / np.maximum(steps.agent, 0)
    return shrinking[np.argsort(negated, kind="stable")]


@dataclass(frozen=True, eq=False)
class _Steps:
    """Changes in the use of each resource if some samples are offloaded.

    Args:
        wire: float64[n], bytes, each negative.
        loader: float64[n], CPU seconds in the loader.
        agent: float64[n], CPU seconds at the agent, beyond reading the file.
    """

    wire: NDArray[np.float64]
    loader: NDArray[np.float64]
    agent: NDArray[np.float64]


def _steps(table: ChoiceTable, smallest: NDArray[np.uint8], who: NDArray[np.uint32]) -> _Steps:
    there, here = table.picked(who, smallest[who], 0)
    wire, agent, loader = (one.astype(np.float64) - other for one, other in zip(there, here, strict=True))
    return _Steps(wire, loader, agent)


def _greedy(
    table: ChoiceTable, rates: Rates, smallest: NDArray[np.uint8], order: NDArray[np.uint32]
) -> tuple[int, str]:
    """Return the number of samples of `order` to take, and the reason to stop there.

    Goes through the order block by block: it mostly stops early, and needs no running sums of all samples.
    """
    now = time_without_offloading(table, rates)
    for low in range(0, len(order), BLOCK):
        steps = _steps(table, smallest, order[low : low + BLOCK])
        wire = now.wire_s + np.cumsum(steps.wire) / rates.wire_bytes_s
        loader = now.loader_cpu_s + np.cumsum(steps.loader) / rates.loader_cores
        agent = now.agent_cpu_s + np.cumsum(steps.agent) / rates.agent_cores
        rest = np.maximum(np.maximum(loader, agent), now.fixed_s)
        ends = np.flatnonzero(wire <= rest)
        if ends.size:
            end = int(ends[0])
            before = float(wire[end - 1]) if end else now.seconds
            # Up to here the wire was the largest term and fell with each sample; only this one can be too much.
            worse = float(rest[end]) > before
            last = _with(now, wire[end], loader[end], agent[end]).bottleneck
            return low + end + (not worse), f"then {resource(last)} limits"
        now = _with(now, wire[-1], loader[-1], agent[-1])
    return len(order), "the network still limits"


def _with(time: EpochTime, wire_s: np.float64, loader_s: np.float64, agent_s: np.float64) -> EpochTime:
    """Return the epoch's time with new values for wire, loader and agent."""
    return replace(time, wire_s=float(wire_s), loader_cpu_s=float(loader_s), agent_cpu_s=float(agent_s))
