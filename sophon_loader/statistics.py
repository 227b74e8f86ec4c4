"""Counters in shared memory: each loader worker writes its own row, the main process adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sophon_loader.pipeline.chain import MAX_OPS
from sophon_loader.shared import SharedArray

_SCALARS = (
    "samples",
    "file_bytes",
    "wire_bytes",
    "loader_cpu_s",
    "agent_cpu_s",
    "retries",
    "fallbacks",
    "degraded",
)
_MAX_ENCODINGS = 32
_CUTS = len(_SCALARS)
_ENCODINGS = _CUTS + MAX_OPS + 1


@dataclass(frozen=True)
class Totals:
    """Sums over workers.

    Args:
        samples: delivered.
        file_bytes, wire_bytes: size of the samples' files; payload and headers received for them.
        loader_cpu_s, agent_cpu_s: CPU seconds of the loader's workers, and of the agent as it reports them.
        retries: samples asked for more than once.
        fallbacks: samples read from the dataset's own root because the agent was gone.
        degraded: samples that the agent answered with an earlier cut than asked.
        cuts, encodings: samples per cut and per encoding.
    """

    samples: int
    file_bytes: int
    wire_bytes: int
    loader_cpu_s: float
    agent_cpu_s: float
    retries: int
    fallbacks: int
    degraded: int
    cuts: dict[int, int]
    encodings: dict[str, int]


class Row:
    """One worker's counters; only that worker writes to them."""

    def __init__(self, values: NDArray[np.float64], encodings: Sequence[str]) -> None:
        self._values = values
        self._encodings = {name: _ENCODINGS + i for i, name in enumerate(encodings)}

    def add(self, **amounts: float) -> None:
        """Add to the named counters."""
        for name, amount in amounts.items():
            self._values[_SCALARS.index(name)] += amount

    def count(self, cut: int, encoding: str, file_nbytes: int, agent_cpu_s: float, degraded: bool) -> None:
        """Count one sample that came from the agent (or, at cut 0 with 0 agent seconds, from a local file)."""
        values = self._values
        values[0] += 1
        values[1] += file_nbytes
        values[4] += agent_cpu_s
        values[7] += degraded
        values[_CUTS + cut] += 1
        values[self._encodings[encoding]] += 1


class Statistics:
    """The rows of all workers.

    Args:
        rows: at least the number of workers, and 1.
        encodings: the names that `Row.count` may be given.
    """

    def __init__(self, rows: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)[:_MAX_ENCODINGS]
        self._values = SharedArray(np.zeros((rows, _ENCODINGS + _MAX_ENCODINGS)))

    def row(self, worker: int) -> Row:
        """The row of a worker."""
        return Row(self._values.array[worker], self._encodings)

    def snapshot(self) -> NDArray[np.float64]:
        """The sums as they are now."""
        total: NDArray[np.float64] = self._values.array.sum(axis=0)
        return total

    def since(self, before: NDArray[np.float64]) -> Totals:
        """What has been added since a snapshot."""
        values = self.snapshot() - before
        cuts = {cut: int(n) for cut, n in enumerate(values[_CUTS:_ENCODINGS]) if n}
        counts = zip(self._encodings, values[_ENCODINGS:], strict=False)
        integers = {name: int(values[i]) for i, name in enumerate(_SCALARS) if not name.endswith("_s")}
        return Totals(
            **integers,
            loader_cpu_s=float(values[3]),
            agent_cpu_s=float(values[4]),
            cuts=cuts,
            encodings={name: int(n) for name, n in counts if n},
        )
