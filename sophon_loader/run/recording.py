"""The epochs of a dataset of any class whose pictures are deferred: torch's own loader over `RecordedDataset`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from operator import index as as_int
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from sophon_loader.host.shared import SharedArray
from sophon_loader.measures.counters import Totals
from sophon_loader.order.order import Order
from sophon_loader.order.reading import Reading
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.recording.opener import OURS, PLAIN
from sophon_loader.recording.recorded_dataset import RecordedDataset, ShownDataset, Streamed
from sophon_loader.run.ticket_sampler import Occurrences


class Recording:
    """What came of the pictures of one loader's newest epoch.

    Attributes:
        order: what torch's loader reads while it starts an epoch, where each sample has a stream of random numbers of
            its own; None to read the user's samplers.
    """

    def __init__(self) -> None:
        self.order: StreamedOrder | None = None
        self._counts = SharedArray(np.zeros((1, 2), np.int64))
        self._before = np.zeros(2, np.int64)

    @contextmanager
    def shown_to(self, loader: DataLoader[Any], order: StreamedOrder | None) -> Iterator[None]:
        """Within, workers that the loader starts are given a `RecordedDataset`.

        Args:
            loader: the user's.
            order: see the attribute.
        """
        dataset, init = loader.dataset, loader.worker_init_fn
        if len(self._counts.array) < loader.num_workers:  # which somebody has assigned to
            self._counts = SharedArray(np.zeros((loader.num_workers, 2), np.int64))
        self._before = self._counts.array.sum(axis=0)
        known = loader.__dict__  # DataLoader allows nobody to assign to its dataset
        known["dataset"] = RecordedDataset(dataset, self._counts)
        known["worker_init_fn"] = ShownDataset(init)
        self.order = order
        try:
            yield
        finally:
            self.order = None
            known["dataset"], known["worker_init_fn"] = dataset, init

    def counted(self) -> Totals:
        """Pictures that our C has decoded (`fused`), and other ones that were opened (`unfused`)."""
        found = self._counts.array.sum(axis=0) - self._before
        return Totals(fused=int(found[OURS]), unfused=int(found[PLAIN]))


class StreamedOrder:
    """An order in which each index says from what its sample draws: seed, epoch, index, and how often it came before.

    Args:
        order: of the user's samplers.
        samples: of the dataset.
        seed: of the run.
    """

    def __init__(self, order: Order, samples: int, seed: Seed) -> None:
        self._order, self._samples, self._seed = order, samples, seed

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Any]:
        return _Streams(iter(self._order), self._order, self._samples, self._seed)


class _Streams(Iterator[Any]):
    """The entries of one iteration. What a signal's handler has interrupted comes with the next call."""

    def __init__(self, reading: Reading, order: Order, samples: int, seed: Seed) -> None:
        self._reading = reading
        self._batched = order.batch_sampler is not None
        self._seed, self._epoch = seed, order.epoch
        self._met = Occurrences(samples)
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
    """What stands for an index in a seed: itself, or 64 bits of its text's hash where it is no integer."""
    try:
        return as_int(index)
    except TypeError:
        return int.from_bytes(blake2b(repr(index).encode(errors="replace"), digest_size=8).digest(), "little")
