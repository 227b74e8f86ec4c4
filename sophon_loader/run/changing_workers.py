"""Batches of one epoch, from workers whose number changes on the way.

The sampler is stopped, the workers finish their batches, and others go on with the next one. No batch is made twice or
dropped, and the order is that of the sampler, so the result does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from sophon_loader.epoch.epoch import Epoch
from sophon_loader.run.torch_loader import TorchLoader
from sophon_loader.run.workforce import Shift, Workforce


class Relay(Iterator[Any]):
    """Yields an epoch's batches, and checks before each if another number of workers would be better.

    Args:
        workforce: decides.
        epoch: of these batches.
        inner: the workers.
        length: number of batches in the epoch; None if unknown.
        may_change: returns True if the number may change to this one in the middle of the epoch.
        loader: the user's, whose arguments other workers are started by, and which may be dropped meanwhile.
    """

    def __init__(
        self,
        workforce: Workforce,
        epoch: Epoch,
        inner: TorchLoader,
        length: int | None,
        may_change: Callable[[int], bool],
        loader: object,
    ) -> None:
        self._loader = loader
        self._workforce = workforce
        self._epoch = epoch
        self._inner = inner
        self._length = length
        self._may_change = may_change
        self._began_s = time.perf_counter()
        self._batches = inner.begin(epoch)
        self._starting_s = time.perf_counter() - self._began_s
        self._came = self._came_of_these = 0
        self._mark: Shift | None = None
        self._stopped = False

    @property
    def of_torch(self) -> Iterator[Any]:
        """Iterator of the current workers."""
        return self._batches

    def __next__(self) -> Any:
        if not self._stopped and not self._epoch.superseded:
            self._look()
        asked_s = time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._stopped or self._inner.tickets.exhausted:
                raise
            asked_s = time.perf_counter()
            self._change()
            batch = next(self._batches)
        if not self._came_of_these:
            self._workforce.start_s = self._starting_s + time.perf_counter() - asked_s
        self._came += 1
        self._came_of_these += 1
        return batch

    def _look(self) -> None:
        if self._came_of_these < self._inner.workers:  # they are starting
            return
        now, before = self._now(), self._mark
        self._mark = now
        if before is None:
            return
        self._workforce.passed(now.minus(before))
        if not self._workforce.is_due or not self._worth_it():
            return  # the next epoch begins with another number, if there is to be one
        if not self._may_change(self._inner.workers):
            return
        number = self._workforce.decide()
        if number == self._inner.workers:
            return
        if self._may_change(number):
            self._stopped = True
            self._inner.tickets.stop()
        else:
            self._workforce.refused(self._inner.workers)

    def _worth_it(self) -> bool:
        """Return True if the rest of the epoch takes longer than a trial of a number."""
        if self._length is None:
            return True
        left_s = (self._length - self._came) * (time.perf_counter() - self._began_s) / max(1, self._came)
        return left_s > self._workforce.shift_s

    def _change(self) -> None:
        self._batches = self._inner.change(self._workforce.number, self._epoch)
        self._came_of_these, self._starting_s, self._mark, self._stopped = 0, 0.0, None, False

    def _now(self) -> Shift:
        epoch, now = self._epoch, self._epoch.account.moment
        totals = now.totals
        occupied_s = totals.busy_s + totals.waited_s
        return Shift(now.seconds, self._came, totals.samples, epoch.awaited_s, occupied_s, totals.loader_cpu_s)


def begun(
    workforce: Workforce | None,
    epoch: Epoch,
    inner: TorchLoader,
    length: int | None,
    may_change: Callable[[int], bool],
    loader: object,
) -> Iterator[Any]:
    """Return the batches of an epoch: from a constant number of workers without a workforce; else see `Relay`."""
    return inner.begin(epoch) if workforce is None else Relay(workforce, epoch, inner, length, may_change, loader)
