"""The sampler that DataLoader reads: the user's, with a ticket for each batch of indices."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from operator import index as as_int
from typing import Any

from torch.utils.data import Sampler

from sophon_loader.client.wanted import BatchId
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.order.order import Order
from sophon_loader.order.reading import Reading
from sophon_loader.order.tickets import QueuedTickets, Ticket

_SPARSE_SHARE = 1 / 32
"""Share of repeated indices up to which they are kept in a dict, at about 100 bytes each. Above it an array of 4 bytes
per sample takes no more than the dict would."""


class Occurrences:
    """Number of times that an iteration has met each index of a dataset.

    Takes a bit per sample, and more only for samples that are met again.

    Args:
        samples: N.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._met = bytearray((samples + 7) // 8)
        self._again: dict[int, int] | array[int] = {}
        self._foreseen: deque[int] = deque()

    def begin_anew(self) -> Callable[[list[Any]], list[int]]:
        """Forget all; returns the function that meets indices."""
        Occurrences.__init__(self, self._samples)
        return self.count_all

    def count(self, index: int) -> int:
        """Meet an index; returns how often it was met before. An index that the dataset does not have, or that is not a
        number, is never met."""
        if type(index) is not int or not -self._samples <= index < self._samples:
            return 0
        index %= self._samples
        byte, bit = index >> 3, 1 << (index & 7)
        if not self._met[byte] & bit:
            self._met[byte] |= bit
            return 0
        again = self._again
        if isinstance(again, dict) and len(again) >= _SPARSE_SHARE * self._samples:
            dense = array("I", bytes(4 * self._samples))
            for one, times in again.items():
                dense[one] = times
            self._again = again = dense
        before = again.get(index, 0) if isinstance(again, dict) else again[index]
        again[index] = before + 1  # last: a signal's handler that raises comes before it, or behind all
        return before + 1

    def count_all(self, indices: Iterable[Any], counted: list[int] | None = None) -> list[int]:
        """Meet indices; returns how often each was met before.

        Args:
            indices: all of them.
            counted: results for the first of them; the others are appended one by one. After a handler's exception,
                those in the list are met.
        """
        found = [] if counted is None else counted
        found.extend(map(self._meet, islice(indices, len(found), None)))
        return found

    def _meet(self, index: Any) -> int:
        seen = self._foreseen
        if not seen:
            return self.count(_row(index))
        first = seen[0]
        del seen[0]
        return first

    def foresee(self, begin: int, indices: list[Any]) -> list[int]:
        """Return the results that `count_all` will have for indices.

        Args:
            begin: number of indices before them that are counted; all of those have been foreseen.
            indices: see `count_all`.
        """
        unseen = begin + len(indices) - len(self._foreseen)
        self._foreseen.extend(self.count(index) for index in indices[len(indices) - max(0, unseen) :])
        return [*islice(self._foreseen, begin, begin + len(indices))]


class TicketSampler(Sampler[Ticket]):
    """Wraps a batch sampler, or a sampler, so that it yields tickets, in its order.

    Args:
        order: of the user's samplers: lists of indices, or, without batches, single ones.
        samples: number of samples in the dataset.
        queued: see below.

    Attributes:
        epoch: number of the next iteration's epoch; to be set before that begins.
        queued: where tickets are noted for workers to look ahead; None for no look-ahead.
        exhausted: True if the newest iteration has ended.
    """

    epoch: Epoch
    exhausted = False

    def __init__(self, order: Order, samples: int, queued: QueuedTickets | None = None) -> None:
        self._order = order
        self._samples = samples
        self.queued = queued
        self._running: _Tickets
        self._stopped = self._goes_on = False

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Ticket]:
        # The epoch is taken at once, not at the first `next`: another one may have begun by then.
        if not self._goes_on:
            batched = self._order.batch_sampler is not None
            self._running = _Tickets(self.epoch, iter(self._order), self._samples, batched=batched)
            self._order.look_ahead.begin()
            self.exhausted = self._stopped = False
        return _HandedOut(self, self._running)

    def stop(self) -> None:
        """Have the running iteration end here, as if there were no more; see `going_on`."""
        self._stopped = True

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Within the block, iterations are not new, but the rest of the one that was stopped."""
        self._goes_on, self._stopped = True, False
        self._running.foresee_anew()
        try:
            yield
        finally:
            self._goes_on = False

    def next_of(self, tickets: _Tickets) -> Ticket:
        """Return the next ticket of an iteration, and note it for workers.

        Raises:
            StopIteration: there is no ticket, or the iteration was stopped.
        """
        if self._stopped:
            raise StopIteration
        ticket = tickets.taken
        if ticket is None:
            for ticket in tickets:  # `next` is a call, behind which a handler may raise
                tickets.taken = ticket  # which comes again if that happens meanwhile
                break
            else:
                self.exhausted = True
                raise StopIteration
        if self.queued is not None:
            self.queued.put(ticket)
            self._tell(tickets, self.queued)
        tickets.taken = None
        return ticket

    def _tell(self, tickets: _Tickets, queued: QueuedTickets) -> None:
        """Note later tickets for workers, too, further ahead while they starve."""
        ahead, now = self._order.look_ahead, tickets.epoch.account.moment
        if not ahead.most:
            return
        if now.totals.samples and ahead.passed(now.seconds, now.totals.starved_s):
            tickets.epoch.told_ahead(now.totals.starved_s)
        tickets.epoch.ahead = ahead.batches
        for ticket in tickets.foreseen(ahead.batches):
            queued.put(ticket)


class _HandedOut(Iterator[Ticket]):
    """The tickets of an iteration as torch reads them. Not a generator, which would end with the first exception that
    passes it, as of a signal's handler.

    Args:
        sampler: of these tickets.
        tickets: of the iteration.
    """

    def __init__(self, sampler: TicketSampler, tickets: _Tickets) -> None:
        self._sampler = sampler
        self._tickets = tickets

    def __next__(self) -> Ticket:
        return self._sampler.next_of(self._tickets)


class _Tickets(Iterator[Ticket]):
    """The tickets of an iteration. The sampler holds this, which must not hold the sampler: a circle would keep both,
    with the shared memory of the queue, until a garbage collection.

    Args:
        epoch: that begins with the first.
        reading: of the samplers.
        samples: number of samples in the dataset.
        batched: True if the samplers give lists of indices, and not single ones.

    Attributes:
        taken: a ticket that was taken of these and not handed out yet.
    """

    def __init__(self, epoch: Epoch, reading: Reading, samples: int, *, batched: bool) -> None:
        self.epoch = epoch
        self._reading = reading
        self._batched = batched
        self._met = Occurrences(samples)
        reading.on_skipping = self._met.begin_anew
        self.taken: Ticket | None = None
        self._entry: Any = None
        """Entry that was read of the samplers, and has no ticket yet."""
        self._counted: list[int] = []
        """Occurrences of the entry's first indices."""
        self._number = self._told = -1  # of the newest batch; and of the last that has been foreseen
        self._cut = 0, 0  # the size of batches that are foreseen, and their number of indices

    def __next__(self) -> Ticket:
        self.epoch.reading = self._reading
        if self._entry is None or not self._reading.waits:  # without workers, what was interrupted is given up
            for entry in self._reading:
                self._entry, self._counted = entry, []
                break
            else:
                raise StopIteration
        indices = [_row(i) for i in self._entry] if self._batched else [_row(self._entry)]
        if not self._counted:
            self._counted = self._reading.counted(len(indices))
        occurrences = self._met.count_all(indices, self._counted)
        ticket = self._ticket(self._number + 1, indices, occurrences)
        foreseen = max(0, self._cut[1] - len(indices))
        self._number, self._cut, self._entry = self._number + 1, (self._cut[0], foreseen), None
        return ticket

    def foresee_anew(self) -> None:
        """Have everything that was foreseen noted again."""
        self._told, self._cut = self._number, (self._cut[0], 0)

    def foreseen(self, batches: int) -> Iterator[Ticket]:
        """Yield the next tickets that are known by now and were not noted yet.

        Args:
            batches: number of coming tickets to look at.
        """
        if self._told < self._number or self._cut[0] != self._reading.size:  # cut in another way from now on
            self.foresee_anew()
            self._cut = self._reading.size, 0
        while self._told < self._number + batches:
            entry = self._reading.foresee(self._told - self._number)
            if entry is None:
                return
            indices, (size, before) = [_row(i) for i in entry], self._cut
            occurrences = self._met.foresee(before, indices)
            self._told, self._cut = self._told + 1, (size, before + len(indices))
            yield self._ticket(self._told, indices, occurrences)

    def _ticket(self, number: int, indices: list[Any], occurrences: list[int]) -> Ticket:
        batch = BatchId(self.epoch.iteration, self.epoch.number, number)
        return Ticket(batch, indices, occurrences if any(occurrences) else None)


def _row(index: Any) -> Any:
    """Return an index of the sampler as a list takes it; one that is not a number stays, for the worker to refuse."""
    try:
        return as_int(index)
    except TypeError:
        return index
