"""Counters in shared memory: each loader worker writes its own row, the main process adds them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sophon_loader.host.shared import SharedArray
from sophon_loader.measures.worker_notes import WorkerNotes
from sophon_loader.wire.limits import MAX_OPS
from sophon_loader.wire.messages import Sample

_Key = TypeVar("_Key")

MAX_ENCODINGS = 32
"""Maximum number of encodings with a counter: the nine of this package, and those of entry points."""


@dataclass(frozen=True)
class Totals:
    """Sums over workers. The fields, in their order, are also the layout of a worker's row of counters.

    Args:
        samples: delivered samples.
        file_bytes: size of the samples' files.
        wire_bytes: payload and headers received for them.
        loader_cpu_s: CPU seconds of the loader's workers.
        agent_cpu_s: CPU seconds of the agent, as it reports them.
        retries: samples requested more than once.
        fallbacks: samples read from the dataset's own root because the agent sent nothing usable.
        refused: fallbacks whose files the agent could not read.
        corrupt: messages between loader and agent that were damaged on their way.
        malformed: messages from the agent that break the protocol, or that their encoding cannot read.
        verified: samples that were also computed here, with the same result.
        degraded: samples that the agent prepared less than requested.
        waited_s: seconds that the loader's workers waited for replies.
        starved_s: part of `waited_s` in which more requests could have been in flight, had torch handed out more
            batches.
        offloaded: samples that had ops run at the agent.
        queued_s: seconds that the offloaded samples waited at the agent for a worker, in total.
        turnaround_s: seconds from the requests of the offloaded samples to their replies, in total.
        upkeep_s: part of `agent_cpu_s` that was not spent on reading, ops or encoding.
        offloaded_upkeep_s: part of `upkeep_s` spent on offloaded samples.
        busy_s: seconds that the loader's workers worked on samples.
        work_cpu_s, work_s: CPU seconds, and seconds, of ops and encoding at the agent.
        read_bytes, read_s: bytes and seconds of reading files at the agent, one after the other.
        fresh: replies that arrived while a worker waited for them.
        net_s: seconds that fresh replies and their requests were on the network, in total.
        fresh_queued_s: seconds that fresh replies waited at the agent, in total.
        weighed: offloaded samples for which the agent reported the choices it had.
        weighed_rest_s: CPU seconds left to the loader for weighed samples, by the agent's estimate.
        estimated_work_s, weighed_work_s: CPU seconds of ops and encoding of weighed samples, estimated and measured.
        compared_rest_s: part of `weighed_rest_s`, for samples that crossed at cut 0, with all ops left to the loader.
        compared_loader_s: CPU seconds that decoding and ops of these samples took at the loader.
        fused: samples whose file our C code has decoded here.
        unfused: other samples that Pillow has decoded here; both are 0 if only Pillow was to decode.
        cached: samples whose file came from the cache on this host.
        in_cache: samples whose file was in the cache when the request was decided on, even if they were then requested.
        cuts, encodings: samples per cut and per encoding.
    """

    samples: int = 0
    file_bytes: int = 0
    wire_bytes: int = 0
    loader_cpu_s: float = 0.0
    agent_cpu_s: float = 0.0
    retries: int = 0
    fallbacks: int = 0
    refused: int = 0
    corrupt: int = 0
    malformed: int = 0
    verified: int = 0
    degraded: int = 0
    waited_s: float = 0.0
    starved_s: float = 0.0
    offloaded: int = 0
    queued_s: float = 0.0
    turnaround_s: float = 0.0
    upkeep_s: float = 0.0
    offloaded_upkeep_s: float = 0.0
    busy_s: float = 0.0
    work_cpu_s: float = 0.0
    work_s: float = 0.0
    read_bytes: int = 0
    read_s: float = 0.0
    fresh: int = 0
    net_s: float = 0.0
    fresh_queued_s: float = 0.0
    weighed: int = 0
    weighed_rest_s: float = 0.0
    estimated_work_s: float = 0.0
    weighed_work_s: float = 0.0
    compared_rest_s: float = 0.0
    compared_loader_s: float = 0.0
    fused: int = 0
    unfused: int = 0
    cached: int = 0
    in_cache: int = 0
    cuts: dict[int, int] = field(default_factory=dict)
    encodings: dict[str, int] = field(default_factory=dict)

    def since(self, before: Totals) -> Totals:
        """Return the difference to an earlier reading."""
        scalars = {name: getattr(self, name) - getattr(before, name) for name in _PLACES}
        return Totals(
            **scalars,
            cuts=_added(self.cuts, before.cuts),
            encodings=_added(self.encodings, before.encodings),
        )

    def plus(self, other: Totals) -> Totals:
        """Return the sum of both."""
        return replace(
            self.scalars_with(other),
            cuts=dict(Counter(self.cuts) + Counter(other.cuts)),
            encodings=dict(Counter(self.encodings) + Counter(other.encodings)),
        )

    def scalars_with(self, other: Totals) -> Totals:
        """Return the sum of both, without `cuts` and `encodings`."""
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in _PLACES})


def _added(now: dict[_Key, int], before: dict[_Key, int]) -> dict[_Key, int]:
    """Return the increase of each count; unchanged counts are left out."""
    added = {key: count - before.get(key, 0) for key, count in now.items()}
    return {key: count for key, count in added.items() if count}


NO_TOTALS = Totals()
_PLACES = {one.name: place for place, one in enumerate(fields(Totals)) if one.name not in ("cuts", "encodings")}
# Those that change with every sample, to be found without a look-up.
_SAMPLES, _FILE_BYTES = _PLACES["samples"], _PLACES["file_bytes"]
_AGENT_CPU_S, _UPKEEP_S = _PLACES["agent_cpu_s"], _PLACES["upkeep_s"]
_READ_BYTES, _READ_S = _PLACES["read_bytes"], _PLACES["read_s"]
_ITERATION = len(_PLACES)
"""Place of the row's iteration, after the scalars."""
_CUTS = _ITERATION + 1
_ENCODINGS = _CUTS + MAX_OPS + 1


class Row:
    """One worker's counters of one iteration over the loader; only that worker writes to them.

    Args:
        values: float64[places] in shared memory.
        encodings: names that have a counter.
        said: receives the reasons why samples do not cross as requested.
        worker: number of the worker.
    """

    def __init__(self, values: NDArray[np.float64], encodings: Sequence[str], said: WorkerNotes, worker: int) -> None:
        self._said, self._worker = said, worker
        self._shared = values
        self._nowhere = np.zeros_like(values)
        self._iteration = values[_ITERATION]
        self._encodings = {name: _ENCODINGS + i for i, name in enumerate(encodings)}

    @property
    def iteration(self) -> int:
        """Number of the iteration over the loader that is counted, from 1."""
        return int(self._iteration)

    def begin(self, iteration: int) -> None:
        """Begin to count for an iteration.

        If a newer one has begun, nothing is counted: this worker is then a leftover of an iteration that was given up.
        """
        self._iteration = iteration
        if iteration > self._shared[_ITERATION]:
            self._shared[:] = 0
            self._shared[_ITERATION] = iteration

    def _values(self) -> NDArray[np.float64]:
        """Return the array to count in. It is a dummy once a newer iteration has begun, which may happen within a
        batch."""
        return self._shared if self._shared[_ITERATION] == self._iteration else self._nowhere

    def add(self, **amounts: float) -> None:
        """Add to the counters of these names, which are fields of `Totals`."""
        values = self._values()
        for name, amount in amounts.items():
            values[_PLACES[name]] += amount

    def count_file(self, nbytes: int) -> None:
        """Count one sample whose file, of `nbytes`, was read on this host."""
        values = self._values()
        values[_SAMPLES] += 1
        values[_FILE_BYTES] += nbytes
        values[_CUTS] += 1
        values[self._encodings["file"]] += 1

    def count(self, sample: Sample, wanted_cut: int, turnaround_s: float) -> None:
        """Count one sample that came from the agent.

        Args:
            sample: the reply.
            wanted_cut: cut that was requested.
            turnaround_s: seconds from the request to the reply.
        """
        values = self._values()
        values[_SAMPLES] += 1
        values[_FILE_BYTES] += sample.file_nbytes
        values[_AGENT_CPU_S] += sum(sample.op_s) + sample.upkeep_s
        values[_UPKEEP_S] += sample.upkeep_s
        values[_CUTS + sample.cut] += 1
        values[self._encodings[sample.encoding]] += 1
        values[_READ_BYTES] += sample.file_nbytes
        values[_READ_S] += sample.read_s
        if len(sample.op_s) > 1:
            self.add(
                offloaded=1,
                queued_s=sample.queued_s,
                turnaround_s=turnaround_s,
                offloaded_upkeep_s=sample.upkeep_s,
                work_cpu_s=sum(sample.op_s[1:]),
                work_s=sample.work_s,
            )
        if sample.cut < wanted_cut or sample.note:
            self.add(degraded=1)
            if sample.note:
                self._said.degraded(self._worker, sample.note)

    def uncarried(self, text: str) -> None:
        """Note that an op returns a value that no encoding carries; `text` names the op and the type."""
        self._said.uncarried(self._worker, text)

    def kept(self, text: str) -> None:
        """Note the reason why this worker keeps ops that it would otherwise leave to the agent; "" if it keeps none."""
        self._said.kept(self._worker, text)

    def changed(self) -> None:
        """Note that the transforms differ from those that the agent knows."""
        self._said.changed(self._worker)


class Statistics:
    """The rows of all workers.

    Args:
        rows: at least the number of workers, and at least 1.
        encodings: names that `Row.count` may receive.

    Attributes:
        agent_cores: for each worker, the agent's cores that its connection can count on, by the agent's newest report.
        per_worker: for each worker, the cores of each of the agent's workers, by its newest report; 0 before the first.
        shortest_net_s: for each worker, the shortest time that a reply was on the network; inf before the first.

    Example:
        >>> statistics = Statistics(rows=2, encodings=["file"])
        >>> row = statistics.row(0)
        >>> row.begin(iteration=1)
        >>> row.count_file(nbytes=100)
        >>> statistics.totals(iteration=1).samples
        1
    """

    def __init__(self, rows: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)[:MAX_ENCODINGS]
        self._values, self.agent_cores, self.per_worker, self.shortest_net_s = SharedArray.together(
            np.zeros((rows, _ENCODINGS + MAX_ENCODINGS)), np.zeros(rows), np.zeros(rows), np.full(rows, np.inf)
        )
        self.said = WorkerNotes(rows)
        """Reasons why samples did not cross as requested."""

    def row(self, worker: int) -> Row:
        """Return the row of a worker."""
        return Row(self._values.array[worker], self._encodings, self.said, worker)

    def totals(self, iteration: int) -> Totals:
        """Return the counts of an iteration so far; zeros once a newer one has begun."""
        rows = self._values.array
        values = rows[rows[:, _ITERATION] == iteration].sum(axis=0)
        cuts = {cut: int(n) for cut, n in enumerate(values[_CUTS:_ENCODINGS]) if n}
        counts = dict(zip(self._encodings, values[_ENCODINGS:].tolist(), strict=False))
        return Totals(
            **{name: _number(name, values[place]) for name, place in _PLACES.items()},  # type: ignore[arg-type]
            cuts=cuts,
            encodings={name: int(count) for name, count in counts.items() if count},
        )


def _number(name: str, value: float) -> float:
    """Convert a counter for `Totals`: seconds to a float, all others to an int."""
    return float(value) if name.endswith("_s") else int(value)
