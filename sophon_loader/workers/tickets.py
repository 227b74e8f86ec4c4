"""What reaches a loader worker in place of a list of indices: the batch, its epoch, and which draw each sample gets."""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import index as as_int
from typing import Any, NamedTuple

import msgpack
from torch.utils.data import Sampler

from sophon_loader.client.requests import BatchId
from sophon_loader.shared import SharedNotes

_SLOT_NBYTES = 1 << 16
_BATCH = struct.Struct("<qq")
"""Iteration and number of the batch, before its ticket: workers look often, and mostly find an earlier one."""
_SPARSE_SHARE = 1 / 32
"""Repeated indices up to this share of all are kept in a dict, at about 100 bytes each; more in an array of 4 bytes
per sample, which then takes no more than the dict would."""


class Ticket(NamedTuple):
    """One batch to fetch.

    `occurrences` says, per index, how often the iteration had met it before; None when it had met none of them.
    """

    batch: BatchId
    indices: list[int]
    occurrences: list[int] | None = None

    def samples(self) -> Iterator[tuple[int, int]]:
        """(index, occurrence) of every sample."""
        return zip(self.indices, self.occurrences or [0] * len(self.indices), strict=True)


class Occurrences:
    """How often an iteration has met each index of a dataset.

    Takes a bit per sample, and more only for samples that are met again.

    Args:
        samples: N.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._met = bytearray((samples + 7) // 8)
        self._again: dict[int, int] | array[int] = {}

    def count(self, index: int) -> int:
        """Meet an index; how often it had been met before. One that the dataset does not have is never met."""
        if not -self._samples <= index < self._samples:
            return 0
        index %= self._samples
        byte, bit = index >> 3, 1 << (index & 7)
        if not self._met[byte] & bit:
            self._met[byte] |= bit
            return 0
        again = self._again
        if isinstance(again, dict):
            again[index] = before = again.get(index, 0) + 1
            if len(again) > _SPARSE_SHARE * self._samples:
                self._again = array("I", bytes(4 * self._samples))
                for one, times in again.items():
                    self._again[one] = times
            return before
        again[index] += 1
        return again[index]


class QueuedTickets:
    """The tickets that DataLoader has in its queues, in memory that workers read: each its own next one, while it still
    works on the one before.

    Reading the sampler further ahead than torch does would show to a sampler that reacts to the training.

    Args:
        slots: tickets that can be queued at a time.
    """

    def __init__(self, slots: int) -> None:
        self._slots = SharedNotes(slots, _SLOT_NBYTES)

    def put(self, ticket: Ticket) -> None:
        """Note a ticket, which takes the place of one that has been worked on; one that is too large is left out."""
        try:
            packed: bytes = msgpack.packb(ticket)
        except OverflowError:  # an index that no dataset has: the worker says so
            return
        batch = ticket.batch
        self._slots.write(batch.number % len(self._slots), _BATCH.pack(batch.iteration, batch.number) + packed)

    def get(self, iteration: int, number: int) -> Ticket | None:
        """The ticket of that batch of that iteration, if it is queued."""
        note = self._slots.read(number % len(self._slots))
        if not note or _BATCH.unpack_from(note) != (iteration, number):
            return None
        batch, indices, occurrences = msgpack.unpackb(note[_BATCH.size :])
        return Ticket(BatchId(*batch), indices, occurrences)


class TicketSampler(Sampler[Ticket]):
    """Wraps a batch sampler (or, `batched` False, a sampler) so that it yields tickets, in its order.

    Args:
        start: called when an iteration begins; gives its (iteration, epoch).
        samples: of the dataset.
        queued: where tickets are noted for workers to look ahead; None for no look-ahead.

    Attributes:
        sizes: samples per batch of the newest iteration, of those that have been read and not yet been taken out.
    """

    def __init__(
        self,
        wrapped: Iterable[Any],
        batched: bool,
        start: Callable[[], tuple[int, int]],
        samples: int,
        queued: QueuedTickets | None,
    ) -> None:
        self._wrapped = wrapped
        self._batched = batched
        self._start = start
        self._samples = samples
        self._queued = queued
        self.sizes: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._wrapped)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Ticket]:
        # At once, not at the first `next`: another iteration may have begun by then.
        iteration, epoch = self._start()
        self.sizes = deque()
        return self._tickets(iteration, epoch, iter(self._wrapped), self.sizes)

    def _tickets(self, iteration: int, epoch: int, entries: Iterator[Any], sizes: deque[int]) -> Iterator[Ticket]:
        met = Occurrences(self._samples)
        for number, entry in enumerate(entries):
            indices = [as_int(i) for i in entry] if self._batched else [as_int(entry)]
            occurrences = [met.count(index) for index in indices]
            ticket = Ticket(BatchId(iteration, epoch, number), indices, occurrences if any(occurrences) else None)
            sizes.append(len(indices))
            if self._queued is not None:
                self._queued.put(ticket)
            yield ticket
