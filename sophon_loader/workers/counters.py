"""Counters in shared memory: each loader worker writes its own row, the main process adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sophon_loader.pipeline.chain import MAX_OPS
from sophon_loader.shared import SharedArray
from sophon_loader.wire.messages import Sample

_SCALARS = (
    "samples",
    "file_bytes",
    "wire_bytes",
    "loader_cpu_s",
    "agent_cpu_s",
    "retries",
    "fallbacks",
    "degraded",
    "waited_s",
    "offloaded",
    "queued_s",
    "turnaround_s",
    "upkeep_s",
    "offloaded_upkeep_s",
)
_SAMPLES, _FILE_BYTES, _AGENT_CPU_S, _UPKEEP_S = (
    _SCALARS.index(name) for name in ("samples", "file_bytes", "agent_cpu_s", "upkeep_s")
)
_MAX_ENCODINGS = 32
_ITERATION = len(_SCALARS)
_CUTS = _ITERATION + 1
_ENCODINGS = _CUTS + MAX_OPS + 1


@dataclass(frozen=True)
class Totals:
    """Sums over workers.

    Args:
        samples: delivered.
        file_bytes, wire_bytes: size of the samples' files; payload and headers received for them.
        loader_cpu_s, agent_cpu_s: CPU seconds of the loader's workers, and of the agent as it reports them.
            Of the agent's, `upkeep_s` are beside reading, ops and encoding, and of those `offloaded_upkeep_s` for
            samples that had ops run there.
        retries: samples asked for more than once.
        fallbacks: samples read from the dataset's own root because the agent was gone.
        degraded: samples that the agent answered with less than was asked for.
        waited_s: seconds for which the loader's workers waited for replies.
        offloaded: samples that had ops run at the agent; queued_s and turnaround_s are the seconds they waited
            there for a worker, and those from asking to the reply, all together.
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
    waited_s: float
    offloaded: int
    queued_s: float
    turnaround_s: float
    upkeep_s: float
    offloaded_upkeep_s: float
    cuts: dict[int, int]
    encodings: dict[str, int]

    def since(self, before: Totals) -> Totals:
        """What has been added since `before`."""
        scalars = {name: getattr(self, name) - getattr(before, name) for name in _SCALARS}
        cuts = {cut: n - before.cuts.get(cut, 0) for cut, n in self.cuts.items()}
        encodings = {name: n - before.encodings.get(name, 0) for name, n in self.encodings.items()}
        return Totals(
            **scalars,
            cuts={cut: n for cut, n in cuts.items() if n},
            encodings={name: n for name, n in encodings.items() if n},
        )


NO_TOTALS = Totals(0, 0, 0, 0.0, 0.0, 0, 0, 0, 0.0, 0, 0.0, 0.0, 0.0, 0.0, {}, {})


class Row:
    """One worker's counters of one iteration over the loader; only that worker writes to them."""

    def __init__(self, values: NDArray[np.float64], encodings: Sequence[str]) -> None:
        self._shared = self._values = values
        self._encodings = {name: _ENCODINGS + i for i, name in enumerate(encodings)}

    def begin(self, iteration: int) -> None:
        """What is counted from now on belongs to this iteration. If a newer one has begun, it goes nowhere: this
        worker then is a left-over of an iteration that was abandoned.
        """
        newest = self._shared[_ITERATION]
        self._values = self._shared if iteration >= newest else np.zeros_like(self._shared)
        if iteration > newest:
            self._shared[:] = 0
            self._shared[_ITERATION] = iteration

    def add(self, **amounts: float) -> None:
        """Add to the named counters."""
        for name, amount in amounts.items():
            self._values[_SCALARS.index(name)] += amount

    def count_file(self, nbytes: int) -> None:
        """Count one sample whose file was read on this host."""
        self.add(samples=1, file_bytes=nbytes)
        self._values[_CUTS] += 1
        self._values[self._encodings["file"]] += 1

    def count(self, sample: Sample, wanted_cut: int, turnaround_s: float) -> None:
        """Count one sample that came from the agent."""
        values = self._values
        values[_SAMPLES] += 1
        values[_FILE_BYTES] += sample.file_nbytes
        values[_AGENT_CPU_S] += sum(sample.op_s) + sample.upkeep_s
        values[_UPKEEP_S] += sample.upkeep_s
        values[_CUTS + sample.cut] += 1
        values[self._encodings[sample.encoding]] += 1
        if len(sample.op_s) > 1:
            self.add(offloaded=1, queued_s=sample.queued_s, turnaround_s=turnaround_s)
            self.add(offloaded_upkeep_s=sample.upkeep_s)
        if sample.cut < wanted_cut or sample.note:
            self.add(degraded=1)


class Statistics:
    """The rows of all workers.

    Args:
        rows: at least the number of workers, and 1.
        encodings: the names that `Row.count` may be given.
    """

    def __init__(self, rows: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)[:_MAX_ENCODINGS]
        self._values = SharedArray(np.zeros((rows, _ENCODINGS + _MAX_ENCODINGS)))
        self.agent_gone = SharedArray(np.zeros(rows, np.bool_))
        """Per worker, whether it has given the agent up; one that follows it in another epoch need not wait again."""

    def row(self, worker: int) -> Row:
        """The row of a worker."""
        return Row(self._values.array[worker], self._encodings)

    def totals(self, iteration: int) -> Totals:
        """What has been counted of an iteration so far; nothing when a newer one has begun."""
        rows = self._values.array
        values = rows[rows[:, _ITERATION] == iteration].sum(axis=0)
        cuts = {cut: int(n) for cut, n in enumerate(values[_CUTS:_ENCODINGS]) if n}
        counts = zip(self._encodings, values[_ENCODINGS:], strict=False)
        scalars = {n: float(v) if n.endswith("_s") else int(v) for n, v in zip(_SCALARS, values, strict=False)}
        return Totals(
            **scalars,  # type: ignore[arg-type]
            cuts=cuts,
            encodings={name: int(n) for name, n in counts if n},
        )
