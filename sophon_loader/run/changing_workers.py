"""One epoch's batches from workers whose number changes on the way.

The sampler is stopped, the workers finish what they have been given, and others go on with the batch behind that. No
batch is made twice or dropped, and the order is that of the sampler, so what is delivered does not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from sophon_loader.epoch.epoch import Epoch
from sophon_loader.run.torch_loader import TorchLoader
from sophon_loader.run.workforce import Shift, Workforce


class Relay(Iterator[Any]):
    """Yields an epoch's batches, and looks before each whether another number of workers would be better.

    Args:
        workforce: decides.
        epoch: whose batches these are.
        inner: the workers.
        length: of the epoch in batches; None if nobody knows.
        may_change: whether there may be so many workers in the middle of this epoch.
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
        """The iterator of the workers that there are now."""
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
        """Whether what is left of the epoch takes longer than a number is looked at."""
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
    """The batches of an epoch, from a number of workers that stays where there is no workforce; else see `Relay`."""
    return inner.begin(epoch) if workforce is None else Relay(workforce, epoch, inner, length, may_change, loader)
