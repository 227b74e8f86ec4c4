"""Looks at an order before torch asks for it, and decides how far ahead workers learn of it.

Only entries that have been drawn already are looked at. Nothing is drawn from a generator, and no sampler's end is
reached, before torch asks. A forecast is not binding: a worker that gets another batch requests that one.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from sophon_loader.errors import add_note, raised_by_handler, without_frames

SHARE = 0.02
"""Share of their time for which workers must starve, in `IN_A_ROW` whiles, to learn of more batches. Starving for 0.02
to 0.04 of the time over 30 ms cost up to 0.15 of the images/s."""
IN_A_ROW = 3
"""Number of whiles in a row. Over a short way, one hiccup starves workers for a while. Workers that start together seem
to starve for two whiles, or four on a busy machine. A loader that has never seen its wire empty takes a full wire for a
long way."""
WHILE_S = 0.25
"""Length of a while, s. The last increase needs this long to take effect."""
_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Samplers that draw all their indices when the first is read, or before."""


class TorchsPrefetch(int):
    """The `prefetch_factor` of a loader that was given none.

    It reads as an int, and a loader that is made with it treats it as not given.

    Example:
        >>> TorchsPrefetch(2) == 2
        True
    """


class LookAhead:
    """Number of batches beyond torch's prefetching that workers learn of: none at first, more while they starve.

    Args:
        batches: initial number.

    Attributes:
        most: maximum number.
        step: smallest useful number, one for each worker.

    Example:
        >>> ahead = LookAhead()
        >>> ahead.allow(9, workers=2)
        >>> [ahead.passed(seconds, starved_s=seconds) for seconds in range(1, 8)]
        [False, False, False, True, True, True, True]
        >>> ahead.batches
        9
    """

    def __init__(self, batches: int = 0) -> None:
        self.batches = batches
        self.most = 0
        self.step = 1
        self._before: tuple[float, float] | None = None
        self._hungry = 0
        """Number of whiles in a row in which workers starved."""

    def allow(self, most: int, workers: int) -> None:
        """Set the maximum number of batches.

        Args:
            most: maximum number.
            workers: number of workers that share them.
        """
        self.most, self.step, self.batches = most, max(1, workers), min(most, self.batches)

    def begin(self) -> None:
        """Note that an epoch begins. Its first batch is ignored, since workers and agent are starting."""
        self._before = None

    def passed(self, seconds: float, starved_s: float) -> bool:
        """Note the time that has passed; True if the number of batches has grown.

        Args:
            seconds: since the epoch began.
            starved_s: seconds, over all workers, for which they have starved since then.
        """
        if self._before is None:
            self._before = seconds, starved_s
            return False
        passed_s, hungry_s = seconds - self._before[0], starved_s - self._before[1]
        if passed_s < WHILE_S:
            return False
        self._before = seconds, starved_s
        self._hungry = self._hungry + 1 if hungry_s > SHARE * passed_s * self.step else 0
        if self.batches >= self.most or self._hungry < IN_A_ROW:
            return False
        self.batches = min(self.most, max(self.step, 2 * self.batches))
        return True


class Foreseen(Iterator[Any]):
    """The entries of a sampler. Some may be looked at before they are read.

    Args:
        entries: of the sampler, in its order.
        sampler: the sampler, see `may_be_foreseen`.
    """

    def __init__(self, entries: Iterator[Any], sampler: Any) -> None:
        self._entries = entries
        self._reach, self._block = _drawn_together(sampler)
        self._waiting: deque[Any] = deque()
        self._read = 0
        self._end: BaseException | None = None

    def __next__(self) -> Any:
        if self._waiting:
            return self._waiting.popleft()
        if self._end is not None:
            raise without_frames(self._end)
        entry = next(self._entries)
        self._read += 1
        return entry

    def skip(self, count: int) -> list[Any]:
        """Read the next `count` entries at once; fewer at the end. Only before any entry was looked at."""
        entries = [*islice(self._entries, count)]
        self._read += len(entries)
        return entries

    def put_back(self, entries: Iterable[Any]) -> None:
        """Let these entries come next, in this order."""
        self._waiting.extendleft(reversed([*entries]))

    def look(self, begin: int, count: int) -> list[Any]:
        """Return `count` of the coming entries, after the first `begin`; fewer if no more are known yet.

        Args:
            begin: number of coming entries to leave out.
            count: maximum number of entries.
        """
        while len(self._waiting) < begin + count and self._is_drawn:
            try:
                self._waiting.append(next(self._entries))
            except Exception as end:  # of the user's sampler, or its end: raised when it is due
                if raised_by_handler(end):
                    raise
                if not isinstance(end, StopIteration):
                    add_note(end, f"raised by the sampler:\n{''.join(traceback.format_tb(end.__traceback__)).rstrip()}")
                self._end = without_frames(end)
            self._read += 1
        return [*islice(self._waiting, begin, begin + count)]

    @property
    def _is_drawn(self) -> bool:
        """True if the next entry has been drawn, so that reading it has no visible effect."""
        if self._end is not None or not 0 < self._read < self._reach:
            return False
        return math.isinf(self._block) or self._read % int(self._block) > 0


class Through:
    """A BatchSampler, as its own code sees it, whose inner sampler can be looked at ahead.

    Args:
        batches: the batch sampler; its current attributes count.
    """

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self.foreseen: Foreseen | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    @property
    def sampler(self) -> Iterator[Any]:
        self.foreseen = Foreseen(iter(self._batches.sampler), self._batches.sampler)
        return self.foreseen

    def __iter__(self) -> Iterator[Any]:
        return BatchSampler.__iter__(self)  # type: ignore[arg-type]


def may_be_foreseen(sampler: Any) -> bool:
    """True if entries of a sampler may be read before they are due.

    That holds for torch's own samplers whose indices depend on nothing that happens meanwhile, and for samplers with a
    true attribute `may_be_read_ahead`.
    """
    if type(sampler) is RandomSampler and sampler.generator is not None:
        return not sampler.replacement or _says_so(sampler)
    return type(sampler) in (*_AT_ONCE, RandomSampler) or _says_so(sampler)


def _says_so(sampler: Any) -> bool:
    return getattr(sampler, "may_be_read_ahead", False) is True


def _drawn_together(sampler: Any) -> tuple[float, float]:
    """Return two limits of reading ahead, once a sampler's first entry was read.

    The first is the number of entries that may be read. The second is the number that it draws at a time, if others who
    draw from its generator could notice.
    """
    if _says_so(sampler):
        return math.inf, math.inf
    if type(sampler) in _AT_ONCE:
        return len(sampler), math.inf
    if type(sampler) is RandomSampler:
        if sampler.generator is None:  # it seeds one of its own with the first index
            return len(sampler), math.inf
        return (0, math.inf) if sampler.replacement else (len(sampler), max(1, len(sampler.data_source)))
    return 0, math.inf
