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
"""Encodings that have a counter: the nine of this package, and those of entry points."""


@dataclass(frozen=True)
class Totals:
    """Sums over workers. Its fields, in their order, are also the layout of a worker's row of counters.

    Args:
        samples: delivered.
        file_bytes: size of the samples' files.
        wire_bytes: payload and headers received for them.
        loader_cpu_s: CPU seconds of the loader's workers.
        agent_cpu_s: CPU seconds of the agent, as it reports them.
        retries: samples asked for more than once.
        fallbacks: samples read from the dataset's own root because nothing of use came from the agent.
        refused: those of them whose files the agent could not read.
        corrupt: messages between loader and agent that were damaged on their way.
        malformed: messages of the agent that break the protocol, or that their encoding cannot read.
        verified: samples that were computed here too, and were the same.
        degraded: samples that the agent answered with less than was asked for.
        waited_s: seconds for which the loader's workers waited for replies.
        starved_s: part of `waited_s`: more could have been on its way, had torch handed out more batches.
        offloaded: samples that had ops run at the agent.
        queued_s: seconds that the offloaded samples waited there for a worker, all together.
        turnaround_s: seconds from asking for the offloaded samples to their replies, all together.
        upkeep_s: part of `agent_cpu_s`: what was neither reading, nor ops, nor encoding.
        offloaded_upkeep_s: part of `upkeep_s`: that of the offloaded samples.
        busy_s: seconds for which the loader's workers were at work on samples.
        work_cpu_s, work_s: CPU seconds, and seconds, of ops and encoding at the agent.
        read_bytes, read_s: bytes and seconds of reading files at the agent, one after the other.
        fresh: replies that came while a worker waited for them.
        net_s: seconds that those were on their way, all together.
        fresh_queued_s: seconds that those waited at the agent, all together.
        weighed: offloaded samples for which the agent told what it had chosen from.
        weighed_rest_s: CPU seconds that were left to the loader for these, by the agent's estimate.
        estimated_work_s, weighed_work_s: CPU seconds of ops and encoding of these, as estimated, and as they were.
        compared_rest_s: part of that: of samples that crossed at cut 0, for which all ops were left.
        compared_loader_s: CPU seconds that decoding and ops of these took at the loader.
        fused: samples whose file C of our own has decoded here.
        unfused: other ones that were decoded here, all by Pillow; both are 0 where that one alone was to decode.
        cached: samples whose file came from the cache on this host.
        in_cache: samples whose file was there when it was decided what to ask for, also if they were asked for.
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
        """What has been added since `before`."""
        scalars = {name: getattr(self, name) - getattr(before, name) for name in _PLACES}
        return Totals(
            **scalars,
            cuts=_added(self.cuts, before.cuts),
            encodings=_added(self.encodings, before.encodings),
        )

    def plus(self, other: Totals) -> Totals:
        """The sums of both."""
        return replace(
            self.scalars_with(other),
            cuts=dict(Counter(self.cuts) + Counter(other.cuts)),
            encodings=dict(Counter(self.encodings) + Counter(other.encodings)),
        )

    def scalars_with(self, other: Totals) -> Totals:
        """The sums of both, without `cuts` and `encodings`."""
        return Totals(**{name: getattr(self, name) + getattr(other, name) for name in _PLACES})


def _added(now: dict[_Key, int], before: dict[_Key, int]) -> dict[_Key, int]:
    """What has been added to some counts; those that are as before are left out."""
    added = {key: count - before.get(key, 0) for key, count in now.items()}
    return {key: count for key, count in added.items() if count}


NO_TOTALS = Totals()
_PLACES = {one.name: place for place, one in enumerate(fields(Totals)) if one.name not in ("cuts", "encodings")}
# Those that change with every sample, to be found without a look-up.
_SAMPLES, _FILE_BYTES = _PLACES["samples"], _PLACES["file_bytes"]
_AGENT_CPU_S, _UPKEEP_S = _PLACES["agent_cpu_s"], _PLACES["upkeep_s"]
_READ_BYTES, _READ_S = _PLACES["read_bytes"], _PLACES["read_s"]
_ITERATION = len(_PLACES)
"""Behind the scalars: the iteration that the row is of."""
_CUTS = _ITERATION + 1
_ENCODINGS = _CUTS + MAX_OPS + 1


class Row:
    """One worker's counters of one iteration over the loader; only that worker writes to them.

    Args:
        values: float64[places], where they lie in shared memory.
        encodings: names that have a counter.
        said: is told what keeps samples from crossing as was asked for.
        worker: whose row it is.
    """

    def __init__(self, values: NDArray[np.float64], encodings: Sequence[str], said: WorkerNotes, worker: int) -> None:
        self._said, self._worker = said, worker
        self._shared = values
        self._nowhere = np.zeros_like(values)
        self._iteration = values[_ITERATION]
        self._encodings = {name: _ENCODINGS + i for i, name in enumerate(encodings)}

    @property
    def iteration(self) -> int:
        """Which iteration over the loader is counted, from 1."""
        return int(self._iteration)

    def begin(self, iteration: int) -> None:
        """Count what follows for this iteration.

        If a newer one has begun, it is counted nowhere: this worker is then left over from one that was given up.
        """
        self._iteration = iteration
        if iteration > self._shared[_ITERATION]:
            self._shared[:] = 0
            self._shared[_ITERATION] = iteration

    def _values(self) -> NDArray[np.float64]:
        """Where to count: a newer iteration may have begun in the middle of a batch of this one."""
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
            sample: its answer.
            wanted_cut: that was asked for.
            turnaround_s: seconds from asking to the reply.
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
        """An op gives what no encoding carries; which op, and what."""
        self._said.uncarried(self._worker, text)

    def kept(self, text: str) -> None:
        """Why this worker leaves no op to the agent that it would else; "" if it does."""
        self._said.kept(self._worker, text)

    def changed(self) -> None:
        """The transforms are not those any more that the agent knows."""
        self._said.changed(self._worker)


class Statistics:
    """The rows of all workers.

    Args:
        rows: at least the number of workers, and 1.
        encodings: the names that `Row.count` may be given.

    Attributes:
        agent_cores: per worker, the agent's cores that its connection can count on, as the agent said last.
        per_worker: per worker, the cores that each of the agent's workers has, as it said last; 0 before that.
        shortest_net_s: per worker, the shortest time that a reply has been on its way; inf before one has come.

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
        """Why samples did not cross as was asked for."""

    def row(self, worker: int) -> Row:
        """The row of a worker."""
        return Row(self._values.array[worker], self._encodings, self.said, worker)

    def totals(self, iteration: int) -> Totals:
        """What has been counted of an iteration so far; nothing when a newer one has begun."""
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
    """A counter as it is told: seconds as a float, all else as an int."""
    return float(value) if name.endswith("_s") else int(value)
