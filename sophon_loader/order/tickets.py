"""The ticket that a loader worker receives in place of indices: the batch, its epoch, and each sample's occurrence."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from sophon_loader.client.wanted import BatchId
from sophon_loader.host.shared import SharedNotes

SLOT_NBYTES = 1 << 16
"""Bytes for a ticket whose size is not known."""
_LEAST_NBYTES = 1 << 12
_HEAD_NBYTES, _SAMPLE_NBYTES = 64, 20
"""Maximum bytes of a ticket: for itself, and per sample. msgpack writes an index and an occurrence as up to 9 bytes
each."""
_AHEAD_NBYTES = 1 << 20
"""Bytes of memory for tickets that torch has not handed out yet."""
_BATCH = struct.Struct("<qq")
"""Iteration and number of the batch, in front of its ticket. Workers look often, and mostly find an earlier batch."""


class Ticket(NamedTuple):
    """One batch to fetch.

    Args:
        batch: iteration, epoch and number.
        indices: ints. Other objects from the sampler are refused when their batch is due, as by torch's DataLoader.
        occurrences: for each index, how often the iteration had it before; None if it had none of them.
    """

    batch: BatchId
    indices: list[Any]
    occurrences: list[int] | None = None

    def samples(self) -> Iterator[tuple[Any, int]]:
        """Return (index, occurrence) of every sample."""
        return zip(self.indices, self.occurrences or [0] * len(self.indices), strict=True)


class QueuedTickets:
    """The tickets in DataLoader's queues, in shared memory, so that a worker can read its next ones early.

    Args:
        slots: maximum number of tickets: those that DataLoader has handed out and not got back, over all workers, and
            later ones that workers may know.
        nbytes: size of a slot.
    """

    def __init__(self, slots: int, nbytes: int = SLOT_NBYTES) -> None:
        self._slots = SharedNotes(slots, nbytes)

    def __len__(self) -> int:
        return len(self._slots)

    def put(self, ticket: Ticket) -> None:
        """Write a ticket to its slot, in place of a finished one. A ticket that is too large is left out."""
        try:
            packed: bytes = msgpack.packb(ticket)
        except (OverflowError, TypeError, ValueError):  # an index that no dataset has: the worker says so
            return
        batch = ticket.batch
        self._slots.write(batch.number % len(self._slots), _BATCH.pack(batch.iteration, batch.number) + packed)

    def get(self, iteration: int, number: int) -> Ticket | None:
        """Return a queued ticket; None if it is not queued.

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
    """Return the bytes that the ticket of a batch of this many samples needs."""
    return min(SLOT_NBYTES, max(_LEAST_NBYTES, _HEAD_NBYTES + _SAMPLE_NBYTES * samples))


def room_ahead(nbytes: int) -> int:
    """Return the number of tickets that torch may not have handed out yet, for which there is memory.

    Args:
        nbytes: size of a slot.
    """
    return _AHEAD_NBYTES // nbytes
