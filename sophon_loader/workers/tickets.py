"""What reaches a loader worker in place of a list of indices: the batch, its epoch, and which draw each sample gets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from sophon_loader.client.wanted import BatchId
from sophon_loader.host.shared import SharedNotes

_SLOT_NBYTES = 1 << 16
_BATCH = struct.Struct("<qq")
"""Iteration and number of the batch, before its ticket: workers look often, and mostly find an earlier one."""


class Ticket(NamedTuple):
    """One batch to fetch.

    `indices` are int; what the sampler gives that is none is refused when its batch is due, as in torch's DataLoader.
    `occurrences` says, per index, how often the iteration had met it before; None when it had met none of them.
    """

    batch: BatchId
    indices: list[Any]
    occurrences: list[int] | None = None

    def samples(self) -> Iterator[tuple[Any, int]]:
        """(index, occurrence) of every sample."""
        return zip(self.indices, self.occurrences or [0] * len(self.indices), strict=True)


class QueuedTickets:
    """The tickets that DataLoader has in its queues, in memory that workers read: each its own next ones, while it
    still works on the one before.

    Reading the sampler further ahead than torch does would show to a sampler that reacts to the training.

    Args:
        slots: tickets that DataLoader has handed out at a time and not got back, over all workers.
    """

    def __init__(self, slots: int) -> None:
        self._slots = SharedNotes(slots, _SLOT_NBYTES)

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, ticket: Ticket) -> None:
        """Note a ticket, which takes the place of one that has been worked on; one that is too large is left out."""
        try:
            packed: bytes = msgpack.packb(ticket)
        except (OverflowError, TypeError, ValueError):  # an index that no dataset has: the worker says so
            return
        batch = ticket.batch
        self._slots.write(batch.number % len(self._slots), _BATCH.pack(batch.iteration, batch.number) + packed)

    def get(self, iteration: int, number: int) -> Ticket | None:
        """A ticket, if it is queued.

        Args:
            iteration: serial number of the iteration over the loader.
            number: of the batch in it, from 0.
        """
        note = self._slots.read(number % len(self._slots))
        if not note or _BATCH.unpack_from(note) != (iteration, number):
            return None
        batch, indices, occurrences = msgpack.unpackb(note[_BATCH.size :])
        return Ticket(BatchId(*batch), indices, occurrences)
