"""An epoch: one iteration over a loader, from its first batch asked for to its last one delivered."""

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
"""An epoch whose workers were starved for so much of their time, and for so long each, says so: the last batches of any
epoch have none behind them."""
STARVED_NOTE = (
    "the look-ahead is too short for the distance to the agent: workers waited for replies and had no further batch to "
    "request; use a larger prefetch_factor or more workers"
)
AHEAD_NOTE = (
    "workers ask for samples of batches that torch has yet to hand out, {} at most, because they waited for replies "
    "and had no further batch to request; give a prefetch_factor to choose this yourself"
)


class Epoch:
    """One iteration: what the sampler, the workers' counters, the iterator and the engine all speak of.

    Example:
        sampler.epoch = epoch = engine.begin(number=3, lag=5)
        for batch in EpochIterator(engine, epoch, iter(loader), length=None, tail=None): ...

    Args:
        iteration: its serial number at this loader; counters of workers are kept apart by it.
        account: what is known of it.
        pass_length: samples after which the iteration has gone over the data once. One that then goes on (an endless
            sampler) turns over: it learns and plans as if another epoch had begun.
        measuring: whether it runs without offloading, to measure only.
        lag: batches that workers ask for ahead of the one being delivered.

    Attributes:
        reading: how its samplers are read; None before they are.
        partial: whether it went on in the middle, from a state.
        delivered: samples so far.
        share: of the samples of the dataset, that it is to deliver, as far as that is known.
        carried: what workers have counted that others have taken the place of.
        awaited_s: seconds so far for which the training has waited for batches.
        superseded: whether a newer epoch has begun; this one is told of no more.
        learnt: whether its measurements have been made use of, or may not be.
        replanned: whether the plan was changed on the way (in this pass).
        ahead: batches that workers have been told of further ahead than torch hands them out.
        ready_after: samples that had been delivered when an agent that started beside it answered.
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
        """The next batch has come, or failed; its size in samples."""
        return 0 if self.reading is None else self.reading.passed()

    def this_pass(self) -> tuple[float, Totals]:
        """Seconds and totals of the pass that is running, or has just ended."""
        seconds, totals = self._before
        now = self.account.moment
        return now.seconds - seconds, now.totals.since(totals)

    def with_carried(self, totals: Totals) -> Totals:
        """What the workers of now have counted, and those before them."""
        return totals if self.carried is NO_TOTALS else self.carried.plus(totals)

    def counted(self) -> Totals:
        """What workers have counted since this was asked the last time."""
        totals = self.account.moment.totals
        since, self._counted = totals.since(self._counted), totals
        return since

    def told_ahead(self, starved_s: float) -> None:
        """Workers have been told of more, so what they were starved for by then says nothing of the rest.

        Args:
            starved_s: that, s.
        """
        self._starved_s = starved_s

    def note_starving(self, processes: int) -> None:
        """Say so in the report if what torch hands out ahead was too little for the way to the agent.

        Args:
            processes: that loaded.
        """
        account, now = self.account, self.account.moment
        if self.ahead:
            account.notes = (*account.notes, AHEAD_NOTE.format(self.ahead))
        if now.totals.starved_s - self._starved_s > processes * max(STARVED_SHARE * now.seconds, STARVED_S):
            account.notes = (*account.notes, STARVED_NOTE)

    def turn_over(self) -> None:
        """Another pass begins."""
        now = self.account.moment
        self.account.passes += 1
        self.replanned = False
        self._before = now.seconds, now.totals


class Observer(Protocol):
    """Who is told how an epoch goes on."""

    @property
    def step_clock(self) -> StepClock:
        """Measures the user's training step."""

    def wanted(self) -> None:
        """The next batch is wanted.

        Raises:
            SophonError: an agent that was not waited for cannot serve the dataset.
        """

    def progressed(self, epoch: Epoch, seconds: float) -> None:
        """Workers have counted what they did.

        Args:
            epoch: that goes on.
            seconds: since it began.
        """

    def delivered(self, epoch: Epoch, seconds: float, samples: int) -> None:
        """A batch has come.

        Args:
            epoch: whose batch it is.
            seconds: since the batch before.
            samples: in the batch.
        """

    def turned_over(self, epoch: Epoch) -> None:
        """It has delivered as many samples as the dataset has, and goes on."""

    def finished(self, epoch: Epoch) -> None:
        """It has delivered its last batch."""


class EpochIterator(Iterator[Any]):
    """Yields an epoch's batches and measures it.

    Args:
        batches: of the workers.
        length: in batches; None if nobody knows.
        tail: what is still to be done to the batches.
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
    """The traceback to raise an error anew with; none for what a worker has raised, whose text has that of its own."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is not None and innermost.tb_frame.f_code is ExceptionWrapper.reraise.__code__:
        return None
    return frames_for_user(error)


class AsMade(Around):
    """Batches that come from workers as they are made (`in_order=False`): tells the reading which ones come.

    Args:
        batches: of DataLoader; what else it has can be had here, too.
        reading: of the samplers, which goes on, or has just begun.
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
