"""Epochs of a dataset of any class whose pictures are deferred: torch's own loader over `RecordedDataset`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import blake2b
from operator import index as as_int
from typing import Any

from torch.utils.data import DataLoader, default_collate

from sophon_loader.batches.batches import BatchMemory
from sophon_loader.batches.collate import Collate
from sophon_loader.measures.counters import Totals
from sophon_loader.order.order import Order
from sophon_loader.order.reading import Reading
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.recording.containers import read_library
from sophon_loader.recording.picture_counts import Counted, PictureCounts
from sophon_loader.recording.picture_notes import decoded_pictures, decoded_share, picture_notes
from sophon_loader.recording.recorded_dataset import RecordedDataset, ShownDataset, Streamed
from sophon_loader.report.report import Report
from sophon_loader.run.recorded_engine import RecordedEngine
from sophon_loader.run.ticket_sampler import Occurrences

_ONE_BY_ONE = (
    "'s own code makes the samples, and the agent is asked for each picture as that looks at it; more workers hide the "
    "round trips, and a dataset that is known beforehand has none: "
)
"""Middle of a note, between the name of a dataset's class and the reason why the dataset is not known."""


class Recording:
    """Counts of the pictures in one loader's newest epoch, and the memory of its batches.

    Args:
        reuse_memory: True to put batches of torch's own collation in shared memory that is used again.
        defers: False to leave the pictures to Pillow, and only provide the order.
        engine: asks an agent for the pictures; None without one.
        untouched: notes for its report, on what the user has asked for and the dataset does not have.

    Attributes:
        engine: see there.
        defers: see there.
        order: read by torch's loader while it starts an epoch in which each sample has its own stream of random
            numbers; None to read the user's samplers.
    """

    def __init__(
        self,
        *,
        reuse_memory: bool,
        defers: bool = True,
        engine: RecordedEngine | None = None,
        untouched: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self._untouched = untouched
        self.defers = defers
        self.order: StreamedOrder | None = None
        self._reuse_memory = reuse_memory
        self._memory = BatchMemory(1)
        self._counts = PictureCounts(workers=1)
        self._before: dict[Counted, int] = {}

    @contextmanager
    def shown_to(self, loader: DataLoader[Any], order: StreamedOrder | None) -> Iterator[None]:
        """Within the block, workers that the loader starts are given a `RecordedDataset`.

        Args:
            loader: the user's.
            order: see the attribute.
        """
        dataset, init, collate_fn = loader.dataset, loader.worker_init_fn, loader.collate_fn
        if loader._iterator is None:  # else its workers persist, and go on counting where they have begun
            self._counts = PictureCounts(max(1, loader.num_workers))
            self._memory = BatchMemory(max(1, loader.num_workers))
        self._before = self._counts.found()
        if self.defers:
            read_library()
        agents = None
        if self.engine is not None:
            agents = self.engine.prepare(Seed(0), collate_fn, max(1, loader.num_workers))
        known = loader.__dict__  # since DataLoader forbids assignments to its dataset
        known["dataset"] = RecordedDataset(dataset, self._counts, defers=self.defers, agents=agents)
        known["worker_init_fn"] = ShownDataset(init)
        if self._reuse_memory and collate_fn is default_collate and loader.num_workers:
            known["collate_fn"] = Collate(default_collate, self._memory)
        self.order = order
        try:
            yield
        finally:
            self.order = None
            known["dataset"], known["worker_init_fn"], known["collate_fn"] = dataset, init, collate_fn

    def close(self) -> None:
        """Free the memory of batches that are no longer referenced, and leave the agent."""
        self._memory.forget_ended()
        if self.engine is not None:
            self.engine.close()

    def notes(self) -> list[str]:
        """Return sentences on the epoch's pictures."""
        return picture_notes(self._found()) or ["pictures that it opens are decoded by our C"]

    def told_by(self, report: Report) -> Report:
        """Return a plain loader's report with counts of the epoch's pictures: `fused` are those that our C has decoded,
        `unfused` the others."""
        found = self._found()
        ours, pillow = decoded_pictures(found)
        if self.engine is not None:
            asked = self.engine.report()
            totals = replace(asked.totals, fused=ours, unfused=pillow)
            how = f"{type(self.engine.data.whole).__name__}{_ONE_BY_ONE}{report.why_not}"
            return replace(
                asked, totals=totals, unit="picture", notes=(*asked.notes, how, *self._untouched, *self.notes())
            )
        share = f"; {decoded_share(found)}" if ours + pillow else ""
        return replace(
            report,
            why_not=f"{report.why_not}{share}",
            totals=Totals(fused=ours, unfused=pillow),
            notes=(*report.notes, *self.notes()),
        )

    def _found(self) -> dict[Counted, int]:
        new = {one: count - self._before.get(one, 0) for one, count in self._counts.found().items()}
        return {one: count for one, count in new.items() if count > 0}


class StreamedOrder:
    """An order in which each index carries its sample's seed: (seed, epoch, index, number of earlier occurrences).

    Args:
        order: of the user's samplers.
        samples: number of samples in the dataset; 0 if unknown.
        seed: of the run.
    """

    def __init__(self, order: Order, samples: int, seed: Seed) -> None:
        self._order, self._samples, self._seed = order, samples, seed

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        return _Streams(iter(self._order), self._order, self._samples, self._seed)


class _Met(Occurrences):
    """Number of times that an iteration has met each index, also indices beyond the dataset's length."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self._others: Counter[int] = Counter()

    def begin_anew(self) -> Callable[[list[Any]], list[int]]:
        """See `Occurrences.begin_anew`."""
        self._others.clear()
        return super().begin_anew()

    def count(self, index: int) -> int:
        """See `Occurrences.count`."""
        if -self._samples <= index < self._samples:
            return super().count(index)
        self._others[index] += 1
        return self._others[index] - 1


class _Streams(Iterator[Any]):
    """The entries of one iteration. An entry that a signal's handler has interrupted is given by the next call."""

    def __init__(self, reading: Reading, order: Order, samples: int, seed: Seed) -> None:
        self._reading = reading
        self._batched = order.batch_sampler is not None
        self._seed, self._epoch = seed, order.epoch
        self._met = _Met(samples)
        reading.on_skipping = self._met.begin_anew
        self._entry: Any = None
        self._counted: list[int] = []

    def __next__(self) -> Any:
        if self._entry is None or not self._reading.waits:
            for entry in self._reading:
                self._entry, self._counted = entry, []
                break
            else:
                raise StopIteration
        indices = list(self._entry) if self._batched else [self._entry]
        numbers = [number_of(index) for index in indices]
        if not self._counted:
            self._counted = self._reading.counted(len(indices))
        times = self._met.count_all(numbers, self._counted)
        draws = [self._seed.draw(self._epoch, *one) for one in zip(numbers, times, strict=True)]
        found = [Streamed(*one) for one in zip(indices, draws, strict=True)]
        self._entry = None
        return found if self._batched else found[0]


def number_of(index: Any) -> int:
    """Return an index's number in a seed: itself, or 64 bits of its text's hash if it is not an integer."""
    try:
        return as_int(index)
    except TypeError:
        return int.from_bytes(blake2b(repr(index).encode(errors="replace"), digest_size=8).digest(), "little")
