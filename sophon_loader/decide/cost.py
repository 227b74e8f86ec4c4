"""The cost model: an epoch takes as long as its busiest resource.

T = max(N / gpu, sum of bytes / wire, sum of loader seconds / loader cores, sum of agent seconds / agent cores)

All four work at the same time, as a loader with look-ahead lets them. Start-up and the last batch are not
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

Bottleneck = Literal["gpu", "wire", "loader-cpu", "agent-cpu"]


@dataclass(frozen=True)
class Terms:
    """The four terms of an epoch, in seconds; the largest is the epoch's time."""

    gpu_s: float
    wire_s: float
    loader_cpu_s: float
    agent_cpu_s: float

    @property
    def seconds(self) -> float:
        """T, the predicted seconds of the epoch."""
        return max(self.gpu_s, self.wire_s, self.loader_cpu_s, self.agent_cpu_s)

    def at(self, old: Rates, new: Rates) -> Terms:
        """The same work at other rates than those it was computed with."""
        return Terms(
            self.gpu_s * old.gpu_samples_s / new.gpu_samples_s if math.isfinite(old.gpu_samples_s) else 0.0,
            self.wire_s * old.wire_bytes_s / new.wire_bytes_s if math.isfinite(old.wire_bytes_s) else 0.0,
            self.loader_cpu_s * old.loader_cores / new.loader_cores,
            self.agent_cpu_s * old.agent_cores / new.agent_cores,
        )

    @property
    def bottleneck(self) -> Bottleneck:
        """The largest term. Of equal ones gpu comes first and wire last."""
        by_name: dict[Bottleneck, float] = {
            "gpu": self.gpu_s,
            "loader-cpu": self.loader_cpu_s,
            "agent-cpu": self.agent_cpu_s,
            "wire": self.wire_s,
        }
        return max(by_name, key=lambda name: by_name[name])


@dataclass(frozen=True)
class Totals:
    """What all samples of an epoch need together: bytes, and CPU seconds on either side."""

    wire_bytes: float
    loader_s: float
    agent_s: float

    def terms(self, samples: int, rates: Rates) -> Terms:
        """The epoch's four terms for ``samples`` samples at ``rates``."""
        return Terms(
            gpu_s=samples / rates.gpu_samples_s,
            wire_s=self.wire_bytes / rates.wire_bytes_s,
            loader_cpu_s=self.loader_s / rates.loader_cores,
            agent_cpu_s=self.agent_s / rates.agent_cores,
        )


def epoch_totals(table: ChoiceTable, chosen: NDArray[np.uint8]) -> Totals:
    """What an epoch needs when sample i takes choice ``chosen[i]``.

    Args:
        table: N samples, C choices.
        chosen: uint8[N], each < C.

    Raises:
        PlanError: ``chosen`` has another shape, names a choice past C, or one that its sample does not have.
    """
    width = len(table.choices)
    if chosen.shape != (table.samples,):
        raise PlanError(f"chosen must have shape ({table.samples},), got {chosen.shape}; one entry per sample")
    if chosen.size and int(chosen.max()) >= width:
        raise PlanError(f"chosen must be below {width}, got {int(chosen.max())}; use the table's own columns")
    wire, loader, agent = chosen_sums((table.wire_bytes.T, table.loader_s.T, table.agent_s.T), chosen)
    if not math.isfinite(wire):
        raise PlanError("chosen must name choices that their samples have, got one of infinite size; see table.has()")
    return Totals(wire, loader, agent)


def chosen_sums(columns: tuple[NDArray[np.float32], ...], chosen: NDArray[np.uint8]) -> tuple[float, ...]:
    """The float64 sum over i of ``array[chosen[i], i]``, for each C-ordered float32[C, N] of ``columns``."""
    sums = [0.0] * len(columns)
    flats = [array.reshape(-1) for array in columns]
    for part in blocks(len(chosen)):
        at = np.multiply(chosen[part], len(chosen), dtype=np.int64)
        at += np.arange(part.start, part.stop)
        for position, flat in enumerate(flats):
            sums[position] += float(flat.take(at).sum(dtype=np.float64))
    return tuple(sums)


def epoch_terms(table: ChoiceTable, chosen: NDArray[np.uint8], rates: Rates) -> Terms:
    """The epoch's four terms when sample i takes choice ``chosen[i]``.

    Args:
        table: N samples, C choices.
        chosen: uint8[N], each < C.
        rates: what the four resources can do.

    Raises:
        PlanError: as ``epoch_totals``.
    """
    return epoch_totals(table, chosen).terms(table.samples, rates)


def terms_without_offloading(table: ChoiceTable, rates: Rates) -> Terms:
    """The epoch's four terms when every sample crosses the wire as its file."""
    first = (table.wire_bytes[:, 0], table.loader_s[:, 0], table.agent_s[:, 0])
    sums = (float(column.sum(dtype=np.float64)) for column in first)
    return Totals(*sums).terms(table.samples, rates)


def verdict(rates: Rates, table: ChoiceTable) -> Bottleneck:
    """The bottleneck without offloading (SOPHON's stage 1)."""
    return terms_without_offloading(table, rates).bottleneck


def moved(old: Rates, new: Rates, tolerance: float = 0.10) -> tuple[str, ...]:
    """Names of the rates that differ from ``old`` by more than ``tolerance`` of it: a reason to plan again.

    A rate that becomes or stops being infinite has moved.

    Raises:
        PlanError: ``tolerance`` is negative or NaN.
    """
    if not tolerance >= 0:
        raise PlanError(f"tolerance must be >= 0, got {tolerance}; 0.1 stands for 10 %")
    return tuple(
        one.name for one in fields(Rates) if _differ(getattr(old, one.name), getattr(new, one.name), tolerance)
    )


def _differ(old: float, new: float, tolerance: float) -> bool:
    if math.isinf(old) or math.isinf(new):
        return old != new
    return abs(new - old) > tolerance * old
