"""The sampler that DataLoader reads: the user's, with a ticket for each batch of indices."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import index as as_int
from typing import Any

from torch.utils.data import Sampler

from sophon_loader.client.wanted import BatchId
from sophon_loader.main.epoch import Epoch
from sophon_loader.main.order import Order, Reading
from sophon_loader.workers.tickets import QueuedTickets, Ticket

_SPARSE_SHARE = 1 / 32
"""Repeated indices up to this share of all are kept in a dict, at about 100 bytes each; more in an array of 4 bytes
per sample, which then takes no more than the dict would."""


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
        """Meet an index; how often it had been met before. One that the dataset does not have, or that is no number, is
        never met."""
        if type(index) is not int or not -self._samples <= index < self._samples:
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

    def count_all(self, indices: Iterable[Any]) -> list[int]:
        """Meet some; how often each had been met before."""
        return [self.count(_row(index)) for index in indices]


class TicketSampler(Sampler[Ticket]):
    """Wraps a batch sampler, or a sampler, so that it yields tickets, in its order.

    Args:
        order: what the user's samplers give: lists of indices, or, without batches, single ones.
        samples: of the dataset.
        queued: see below.

    Attributes:
        epoch: the one that the next iteration is; to be set before that begins.
        queued: where tickets are noted for workers to look ahead; None for no look-ahead.
        exhausted: whether the newest iteration has come to its end.
    """

    epoch: Epoch
    exhausted = False

    def __init__(self, order: Order, samples: int, queued: QueuedTickets | None = None) -> None:
        self._order = order
        self._samples = samples
        self.queued = queued
        self._running: Iterator[Ticket] = iter(())
        self._stopped = self._goes_on = False

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Ticket]:
        # The epoch is taken at once, not at the first `next`: another one may have begun by then.
        if not self._goes_on:
            batched = self._order.batch_sampler is not None
            self._running = _tickets(self.epoch, iter(self._order), self._samples, batched=batched)
            self.exhausted = self._stopped = False
        return self._handed_out(self._running)

    def stop(self) -> None:
        """Have the running iteration give no more, as if that were all; see `going_on`."""
        self._stopped = True

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """What is begun in here are not new iterations, but the rest of the one that was stopped."""
        self._goes_on, self._stopped = True, False
        try:
            yield
        finally:
            self._goes_on = False

    def _handed_out(self, tickets: Iterator[Ticket]) -> Iterator[Ticket]:
        while not self._stopped:
            ticket = next(tickets, None)
            if ticket is None:
                self.exhausted = True
                return
            if self.queued is not None:
                self.queued.put(ticket)
            yield ticket


def _tickets(epoch: Epoch, reading: Reading, samples: int, *, batched: bool) -> Iterator[Ticket]:
    """The tickets of an iteration. No method: the sampler holds this, and a circle would keep both, with the shared
    memory of what is queued, until a garbage collection.

    Args:
        epoch: that begins.
        reading: of the samplers.
        samples: of the dataset.
        batched: whether the samplers give lists of indices, and not single ones.
    """
    epoch.reading = reading
    met = Occurrences(samples)

    def skipping() -> Callable[[list[Any]], list[int]]:
        nonlocal met
        met = Occurrences(samples)
        return met.count_all

    reading.on_skipping = skipping
    for number, entry in enumerate(reading):
        indices = [_row(i) for i in entry] if batched else [_row(entry)]
        occurrences = reading.counted(len(indices))
        occurrences += met.count_all(indices[len(occurrences) :])
        batch = BatchId(epoch.iteration, epoch.number, number)
        yield Ticket(batch, indices, occurrences if any(occurrences) else None)


def _row(index: Any) -> Any:
    """An index of the sampler as a list takes it; one that is no number as it is, for the worker to refuse in turn."""
    try:
        return as_int(index)
    except TypeError:
        return index
