"""An epoch: one iteration over a loader, from the request of its first batch to the delivery of its last one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Protocol

from torch._utils import ExceptionWrapper
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from sophon_loader.device.step_clock import StepClock
from sophon_loader.device.tail import Tail
from sophon_loader.epoch.account import Account
from sophon_loader.errors import frames_for_user
from sophon_loader.measures.counters import NO_TOTALS, Totals
from sophon_loader.order.reading import Reading
from sophon_loader.torch_internals.iterator_wrapper import Around
from sophon_loader.torch_internals.owned_workers import takes_a_batch
from sophon_loader.torch_internals.untraced import untraced

STARVED_SHARE, STARVED_S = 0.1, 1.0
"""Share of its time, and seconds per worker, for which an epoch's workers must starve for a note in the report. Some
starving is normal: the last batches of any epoch have none after them."""
STARVED_NOTE = (
    "the look-ahead is too short for the distance to the agent: workers waited for replies and had no further batch to "
    "request; use a larger prefetch_factor or more workers"
)
AHEAD_NOTE = (
    "workers ask for samples of batches that torch has yet to hand out, {} at most, because they waited for replies "
    "and had no further batch to request; give a prefetch_factor to choose this yourself"
)


class Epoch:
    """One iteration, as sampler, counters, iterator and engine share it.

    Example:
        sampler.epoch = epoch = engine.begin(number=3, lag=5)
        for batch in EpochIterator(engine, epoch, iter(loader), length=None, tail=None): ...

    Args:
        iteration: serial number at this loader, which separates the workers' counters.
        account: facts for the report.
        pass_length: samples after which the iteration has gone over the data once. An iteration that continues then (an
            endless sampler) turns over: it learns and plans as if another epoch had begun.
        measuring: True if it runs without offloading, only to measure.
        lag: batches that workers request ahead of the one being delivered.

    Attributes:
        reading: the reading of its samplers; None before it begins.
        partial: True if it continues in the middle, from a state.
        delivered: samples so far.
        share: share of the dataset's samples that it will deliver, as far as known.
        carried: counts of workers that were replaced since.
        awaited_s: seconds so far for which the training has waited for batches.
        superseded: True if a newer epoch has begun; observers hear no more of this one.
        learnt: True if its measurements were used, or may not be used.
        replanned: True if the plan was changed on the way (in this pass).
        ahead: batches that workers know of beyond those that torch has handed out.
        ready_after: samples that had been delivered when an agent that was started meanwhile answered.
    """

    def __init__(self, iteration: int, account: Account, *, pass_length: int, measuring: bool, lag: int) -> None:
        self.iteration = iteration
        self.pass_length = pass_length
        self.measuring = measuring
        self.lag = lag
        self.account = account
        self.share = 1.0
        self.carried = NO_TOTALS
        self.reading: Reading | None = None
        self.partial = False
        self.delivered = 0
        self.awaited_s = 0.0
        self.superseded = self.learnt = self.replanned = False
        self.ahead = 0
        self.ready_after = 0
        self._before: tuple[float, Totals] = (0.0, NO_TOTALS)
        self._starved_s = 0.0
        self._counted = NO_TOTALS

    @property
    def number(self) -> int:
        """The epoch whose random numbers are drawn."""
        return self.account.number

    def passed(self) -> int:
        """Note that the next batch was delivered, or failed; returns its size in samples."""
        return 0 if self.reading is None else self.reading.passed()

    def this_pass(self) -> tuple[float, Totals]:
        """Return seconds and totals of the pass that is running, or has just ended."""
        seconds, totals = self._before
        now = self.account.moment
        return now.seconds - seconds, now.totals.since(totals)

    def with_carried(self, totals: Totals) -> Totals:
        """Add the counts of replaced workers to those of the current ones."""
        return totals if self.carried is NO_TOTALS else self.carried.plus(totals)

    def counted(self) -> Totals:
        """Return the counts since the last call."""
        totals = self.account.moment.totals
        since, self._counted = totals.since(self._counted), totals
        return since

    def told_ahead(self, starved_s: float) -> None:
        """Note that workers learnt of more batches, so their starving until now says nothing of the rest.

        Args:
            starved_s: seconds for which they have starved until now.
        """
        self._starved_s = starved_s

    def note_starving(self, processes: int) -> None:
        """Add a note to the report if torch's prefetching was too short for the way to the agent.

        Args:
            processes: number of processes that loaded.
        """
        account, now = self.account, self.account.moment
        if self.ahead:
            account.notes = (*account.notes, AHEAD_NOTE.format(self.ahead))
        if now.totals.starved_s - self._starved_s > processes * max(STARVED_SHARE * now.seconds, STARVED_S):
            account.notes = (*account.notes, STARVED_NOTE)

    def turn_over(self) -> None:
        """Begin another pass."""
        now = self.account.moment
        self.account.passes += 1
        self.replanned = False
        self._before = now.seconds, now.totals


class Observer(Protocol):
    """Receives the events of an epoch."""

    @property
    def step_clock(self) -> StepClock:
        """Measures the user's training step."""

    def wanted(self) -> None:
        """The next batch is requested.

        Raises:
            SophonError: an agent that was not waited for cannot serve the dataset.
        """

    def progressed(self, epoch: Epoch, seconds: float) -> None:
        """Workers have updated their counters.

        Args:
            epoch: the running epoch.
            seconds: since it began.
        """

    def delivered(self, epoch: Epoch, seconds: float, samples: int) -> None:
        """A batch was delivered.

        Args:
            epoch: the epoch of the batch.
            seconds: since the batch before.
            samples: in the batch.
        """

    def turned_over(self, epoch: Epoch) -> None:
        """The epoch has delivered as many samples as the dataset has, and continues."""

    def finished(self, epoch: Epoch) -> None:
        """The epoch has delivered its last batch."""


class EpochIterator(Iterator[Any]):
    """Yields an epoch's batches and measures it.

    Args:
        observer: receives the epoch's events.
        epoch: the epoch.
        batches: of the workers.
        length: in batches; None if not known.
        tail: ops to run on each batch; None for none.
    """

    def __init__(
        self, observer: Observer, epoch: Epoch, batches: Iterator[Any], length: int | None, tail: Tail | None
    ) -> None:
        self.epoch = epoch
        self._observer = observer
        self._batches = batches
        self._length = length
        self._tail = tail
        self._started_s = self._last_s = time.perf_counter()
        self._clock = observer.step_clock
        self._clock.pause()
        self._size: int | None = None  # of the batch delivered last
        self._in_pass = 0
        self._pid = os.getpid()
        self._alone = isinstance(batches, _SingleProcessDataLoaderIter)  # one batch is made at a time, when it is due

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length of an iterator must be known, got a sampler that has none")
        return self._length

    @property
    def last_size(self) -> int:
        """Samples of the batch that was delivered last."""
        return self._size or 0

    def __iter__(self) -> EpochIterator:
        return self

    @untraced
    def __next__(self) -> Any:
        if self._size is not None:
            self._clock.step_ends(self._size)
        if self._pid != os.getpid():  # forked: agent, report and plan are the parent's
            self.epoch.superseded = True
        if not self.epoch.superseded:
            self._observer.wanted()
        if self._alone and self.epoch.reading is not None:
            self.epoch.reading.give_up()
        since_s = time.perf_counter()
        try:
            batch = next(self._batches)
            self._clock.batch_comes()
            if self._tail is not None:
                batch = self._tail(batch)
            self.epoch.awaited_s += time.perf_counter() - since_s
        except StopIteration:
            if self.epoch.reading is not None:
                self.epoch.reading.ended = True
            self._note(finished=True)
            raise
        except BaseException as error:
            if takes_a_batch(error):
                self.epoch.passed()
            if not isinstance(error, Exception):
                raise
            self._note(finished=False)
            error.__traceback__ = _frames_for_user(error)
            raise error
        is_first, self._size = self._size is None, self.epoch.passed()
        self._note(finished=False, is_first=is_first)
        self.epoch.delivered += self._size
        self._in_pass += self._size
        self._clock.step_starts()
        return batch

    def _note(self, *, finished: bool, is_first: bool = False) -> None:
        if self.epoch.superseded:
            return  # an abandoned iteration; the report is about the newest
        now_s = time.perf_counter()
        self._observer.progressed(self.epoch, now_s - self._started_s)
        if finished:
            self._observer.finished(self.epoch)
        elif not is_first and self._size is not None:
            if self._in_pass >= self.epoch.pass_length:
                self._in_pass = 0
                self._observer.turned_over(self.epoch)
            self._observer.delivered(self.epoch, now_s - self._last_s, self._size)
        self._last_s = now_s


def _frames_for_user(error: Exception) -> TracebackType | None:
    """Return the traceback for raising an error again; None for a worker's error, whose text contains its own
    traceback."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is not None and innermost.tb_frame.f_code is ExceptionWrapper.reraise.__code__:
        return None
    return frames_for_user(error)


class AsMade(Around):
    """Batches in the order in which workers finish them (`in_order=False`); tells the reading which batch is next.

    Args:
        batches: DataLoader's iterator; its other attributes are available here, too.
        reading: of the samplers; continued, or just begun.
    """

    def __init__(self, batches: Any, reading: Reading) -> None:
        super().__init__(batches)
        self._reading = reading
        self._first = reading.came

    def __next__(self) -> Any:
        asked = self._batches.asked
        try:
            return next(self._batches)
        finally:
            for number in asked - self._batches.asked:
                self._reading.comes(self._first + number)
