"""The cost model: an epoch takes as long as its busiest resource.

T = max(N / gpu, N / disk, sum of bytes / wire, sum of loader seconds / loader cores,
        sum of agent seconds / agent cores)

`EpochWork` holds the sums, which depend on the plan alone; `EpochTime` holds the terms, the work at given rates. All
resources work at the same time, as a loader with look-ahead lets them. Start-up and the last batch are not
modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.facts import ChoiceTable, Rates, blocks
from sophon_loader.errors import PlanError

Bottleneck = Literal["gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk"]


@dataclass(frozen=True)
class EpochTime:
    """Seconds for which an epoch keeps each resource busy; the largest is the epoch's length.

    Args:
        gpu_s: training steps.
        wire_s: payload on the wire.
        loader_cpu_s: CPU work of the loader's processes, divided by their cores.
        agent_cpu_s: CPU work of the agent, divided by its cores.
        disk_s: files that the agent's disk reads.
    """

    gpu_s: float
    wire_s: float
    loader_cpu_s: float
    agent_cpu_s: float
    disk_s: float = 0.0

    @property
    def fixed_s(self) -> float:
        """Seconds that no choice changes."""
        return max(self.gpu_s, self.disk_s)

    @property
    def seconds(self) -> float:
        """T, the predicted seconds of the epoch."""
        return max(self.fixed_s, self.wire_s, self.loader_cpu_s, self.agent_cpu_s)

    def at(self, old: Rates, new: Rates) -> EpochTime:
        """Convert to other rates, for unchanged work.

        Args:
            old: the rates that this was computed with.
            new: the rates wanted.
        """
        # A term at an infinite rate was 0 s, so its work is not known; it is assumed to take no time again.
        gpu_s = wire_s = disk_s = 0.0
        if math.isfinite(old.gpu_samples_s):
            gpu_s = self.gpu_s * old.gpu_samples_s / new.gpu_samples_s
        if math.isfinite(old.wire_bytes_s):
            wire_s = self.wire_s * old.wire_bytes_s / new.wire_bytes_s
        if math.isfinite(old.disk_samples_s):
            disk_s = self.disk_s * old.disk_samples_s / new.disk_samples_s
        return EpochTime(
            gpu_s,
            wire_s,
            self.loader_cpu_s * old.loader_cores / new.loader_cores,
            self.agent_cpu_s * old.agent_cores / new.agent_cores,
            disk_s,
        )

    @property
    def bottleneck(self) -> Bottleneck:
        """The largest term. Of equal ones gpu comes first and wire last."""
        by_name: dict[Bottleneck, float] = {
            "gpu": self.gpu_s,
            "agent-disk": self.disk_s,
            "loader-cpu": self.loader_cpu_s,
            "agent-cpu": self.agent_cpu_s,
            "wire": self.wire_s,
        }
        return max(by_name, key=lambda name: by_name[name])


@dataclass(frozen=True)
class EpochWork:
    """Resources that all samples of an epoch need together.

    Args:
        wire_bytes: bytes of payload.
        loader_s: CPU seconds in the loader.
        agent_s: CPU seconds at the agent.
    """

    wire_bytes: float
    loader_s: float
    agent_s: float

    def time(self, samples: int, rates: Rates) -> EpochTime:
        """Return the seconds for which this work keeps each resource busy.

        Args:
            samples: N, for the GPU and the agent's disk.
            rates: of the resources.
        """
        return EpochTime(
            gpu_s=samples / rates.gpu_samples_s,
            wire_s=self.wire_bytes / rates.wire_bytes_s,
            loader_cpu_s=self.loader_s / rates.loader_cores,
            agent_cpu_s=self.agent_s / rates.agent_cores,
            disk_s=samples / rates.disk_samples_s,
        )


def epoch_work(table: ChoiceTable, chosen: NDArray[np.uint8]) -> EpochWork:
    """Return the work of an epoch in which sample i takes choice `chosen[i]`.

    Args:
        table: N samples, C choices.
        chosen: uint8[N], each < C.

    Raises:
        PlanError: `chosen` has another shape, names a choice past C, or one that its sample does not have.

    Example:
        >>> work = epoch_work(table, plan.chosen)
        >>> work.time(table.samples, rates).bottleneck
        'wire'
    """
    width = len(table.choices)
    if chosen.shape != (table.samples,):
        raise PlanError(f"chosen must have shape ({table.samples},), got {chosen.shape}; one entry per sample")
    if chosen.size and int(chosen.max()) >= width:
        raise PlanError(f"chosen must be below {width}, got {int(chosen.max())}; use the table's own columns")
    wire = loader = agent = 0.0
    for part, costs in table.parts():
        sums = chosen_sums(tuple(np.ascontiguousarray(values.T) for values in costs), chosen[part])
        wire, agent, loader = wire + sums[0], agent + sums[1], loader + sums[2]
    if not math.isfinite(wire):
        raise PlanError("chosen must name choices that their samples have, got one of infinite size; see table.has()")
    return EpochWork(wire, loader, agent)


def chosen_sums(columns: tuple[NDArray[np.float32], ...], chosen: NDArray[np.uint8]) -> tuple[float, ...]:
    """Return the sums over the chosen entries, in float64.

    Args:
        columns: C-ordered float32[C, N] arrays.
        chosen: uint8[N], each < C.

    Returns:
        For each array the sum over i of `array[chosen[i], i]`.
    """
    sums = [0.0] * len(columns)
    flats = [array.reshape(-1) for array in columns]
    for part in blocks(len(chosen)):
        at = np.multiply(chosen[part], len(chosen), dtype=np.int64)
        at += np.arange(part.start, part.stop)
        for position, flat in enumerate(flats):
            sums[position] += float(flat.take(at).sum(dtype=np.float64))
    return tuple(sums)


def epoch_time(table: ChoiceTable, chosen: NDArray[np.uint8], rates: Rates) -> EpochTime:
    """Return the seconds for which an epoch keeps each resource busy if sample i takes choice `chosen[i]`.

    Args:
        table: N samples, C choices.
        chosen: uint8[N], each < C.
        rates: of the resources.

    Raises:
        PlanError: see `epoch_work`.
    """
    return epoch_work(table, chosen).time(table.samples, rates)


def time_without_offloading(table: ChoiceTable, rates: Rates, cached: float = 0.0) -> EpochTime:
    """Return the seconds for which an epoch keeps each resource busy if every sample is made from its file.

    Args:
        table: N samples; its first choice is the file.
        rates: of the resources.
        cached: share of the samples whose files are on the loader's host; all others' cross the wire.
    """
    wire = agent = loader = 0.0
    for _, costs in table.parts():
        sums = [float(values[:, 0].sum(dtype=np.float64)) for values in costs]
        wire, agent, loader = wire + sums[0], agent + sums[1], loader + sums[2]
    crossing = 1 - cached
    work = EpochWork(wire_bytes=crossing * wire, loader_s=loader, agent_s=crossing * agent)
    return work.time(table.samples, rates)


def moved(old: Rates, new: Rates, tolerance: float = 0.10) -> tuple[str, ...]:
    """Return the names of rates that have changed enough to plan again.

    A rate that becomes or stops being infinite has changed enough.

    Args:
        old: the rates planned with.
        new: the rates measured since.
        tolerance: change that is accepted, as a share of the old rate, >= 0.

    Raises:
        PlanError: `tolerance` is negative or NaN.
    """
    if not tolerance >= 0:  # also catches NaN
        raise PlanError(f"tolerance must be >= 0, got {tolerance}; 0.1 stands for 10 %")
    names = [field.name for field in fields(Rates)]
    return tuple(name for name in names if _differ(getattr(old, name), getattr(new, name), tolerance))


def _differ(old: float, new: float, tolerance: float) -> bool:
    if math.isinf(old) or math.isinf(new):
        return old != new
    return abs(new - old) > tolerance * old
