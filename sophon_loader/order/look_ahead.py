"""What is known of an order before torch asks for it, and how far the workers are told of it.

Told early is only what has been drawn already: nothing is drawn from a generator, and no end of a sampler is met,
before torch asks. What has been told binds nobody: a worker that gets another batch asks for that one.
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
"""Workers that starve for more of their time, in a few whiles in a row, are told of more. Starving for 0.02 to 0.04 of
it over 30 ms cost up to 0.15 of the images/s."""
IN_A_ROW = 3
"""Over a short way, one hiccup starves workers for a while. Several that start together seem to starve for two whiles,
or four on a busy machine: a full wire seems a long way to one that has never seen it empty.
"""
WHILE_S = 0.25
"""So long, and no shorter than what was told last needs to show."""
_AT_ONCE = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)
"""Draw all their indices when the first is read, or before."""


class TorchsPrefetch(int):
    """The `prefetch_factor` of a loader that was given none: an int to whoever reads it, and what a loader that is made
    with it takes for none, too.

    Example:
        >>> TorchsPrefetch(2) == 2
        True
    """


class LookAhead:
    """How many batches further ahead than torch workers are told of: none, and more while they starve.

    Args:
        batches: at first.

    Attributes:
        most: that there may be.
        step: the fewest that are of use: one for each worker.

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
        """Whiles in a row."""

    def allow(self, most: int, workers: int) -> None:
        """Say how many there may be.

        Args:
            most: of them.
            workers: that share them.
        """
        self.most, self.step, self.batches = most, max(1, workers), min(most, self.batches)

    def begin(self) -> None:
        """Another epoch, whose first batch says nothing: workers and agent start."""
        self._before = None

    def passed(self, seconds: float, starved_s: float) -> bool:
        """Time has passed; whether there are more now.

        Args:
            seconds: since the epoch began.
            starved_s: seconds, over all workers, for which they were starved since then.
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
    """What a sampler gives, of which some may be looked at before it is read.

    Args:
        entries: of the sampler, in its order.
        sampler: see `may_be_foreseen`.
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
        """The next `count`, all at once; fewer at the end. Of a sampler of which nothing has been looked at."""
        entries = [*islice(self._entries, count)]
        self._read += len(entries)
        return entries

    def put_back(self, entries: Iterable[Any]) -> None:
        """Have these come next, in this order."""
        self._waiting.extendleft(reversed([*entries]))

    def look(self, begin: int, count: int) -> list[Any]:
        """Of what comes next, the `count` behind the first `begin`; fewer where no more is known yet."""
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
        """Whether the next entry is drawn already, so that to read it changes nothing that anybody else may see."""
        if self._end is not None or not 0 < self._read < self._reach:
            return False
        return math.isinf(self._block) or self._read % int(self._block) > 0


class Through:
    """A BatchSampler as its own code sees it, but that its sampler is looked at before it is read.

    Args:
        batches: whose attributes count, as they are at the moment.
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
    """Whether anything of a sampler may be read before it is due: one of torch's own, whose indices depend on nothing
    that happens meanwhile, or one that says so."""
    if type(sampler) is RandomSampler and sampler.generator is not None:
        return not sampler.replacement or _says_so(sampler)
    return type(sampler) in (*_AT_ONCE, RandomSampler) or _says_so(sampler)


def _says_so(sampler: Any) -> bool:
    return getattr(sampler, "may_be_read_ahead", False) is True


def _drawn_together(sampler: Any) -> tuple[float, float]:
    """Up to where a sampler may be read once its first entry has been; and how many entries it draws at a time, where
    that shows to others who draw from its generator."""
    if _says_so(sampler):
        return math.inf, math.inf
    if type(sampler) in _AT_ONCE:
        return len(sampler), math.inf
    if type(sampler) is RandomSampler:
        if sampler.generator is None:  # it seeds one of its own with the first index
            return len(sampler), math.inf
        return (0, math.inf) if sampler.replacement else (len(sampler), max(1, len(sampler.data_source)))
    return 0, math.inf
