"""What reaches a loader worker in place of a list of indices: the batch, its epoch, and which draw each sample gets."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from sophon_loader.client.wanted import BatchId
from sophon_loader.host.shared import SharedNotes

SLOT_NBYTES = 1 << 16
"""Room for a ticket whose size nobody knows."""
_LEAST_NBYTES = 1 << 12
_HEAD_NBYTES, _SAMPLE_NBYTES = 64, 20
"""At most, of a ticket: an index and an occurrence are 9 bytes each, as msgpack writes them."""
_AHEAD_NBYTES = 1 << 20
"""Memory for tickets that torch has not handed out yet."""
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

    Args:
        slots: tickets that DataLoader has handed out at a time and not got back, over all workers; and those behind
            them, of which workers are told.
        nbytes: of a slot.
    """

    def __init__(self, slots: int, nbytes: int = SLOT_NBYTES) -> None:
        self._slots = SharedNotes(slots, nbytes)

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


def slot_nbytes(samples: int) -> int:
    """Room for the ticket of a batch of so many samples."""
    return min(SLOT_NBYTES, max(_LEAST_NBYTES, _HEAD_NBYTES + _SAMPLE_NBYTES * samples))


def room_ahead(nbytes: int) -> int:
    """How many tickets there may be that torch has not handed out.

    Args:
        nbytes: of a slot.
    """
    return _AHEAD_NBYTES // nbytes
