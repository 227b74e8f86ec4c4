"""The position of an epoch in its samplers, and the states that their order was drawn from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from sophon_loader.order.generators import Packed

Stretch = tuple[int, int]
"""Half-open range of positions in an order."""


@dataclass(frozen=True)
class Drawn:
    """States that an order was drawn from.

    Args:
        at_first: generators before the first index was read.
        at_iter: generators before `iter(sampler)`; None if that drew nothing.
        own: the sampler's `state_dict()` from before that; None if it has none.
    """

    at_first: Packed
    at_iter: Packed | None = None
    own: Any = None


@dataclass(frozen=True)
class Position:
    """The position of an epoch.

    Args:
        samples: number of samples up to the last one delivered, over all ranks if the loader shards.
        digest: of their indices; empty if the loader shards, because its order follows from the seed.
        drawn: states that the order was drawn from; None before it is drawn, and if the loader shards.
        missing: ranges of those samples that have not been delivered. They occur with `in_order=False`, and hold no
            more samples than workers are working on.
    """

    samples: int = 0
    digest: str = ""
    drawn: Drawn | None = None
    missing: tuple[Stretch, ...] = ()


class Reading(Iterator[Any]):
    """One iteration over the samplers, and the training's position in it.

    If it continues an earlier one, missing samples come first.

    Attributes:
        ended: True once the training knows that the iteration is over.
        unrepeatable: reason why the order cannot be drawn again; "" if none is known.
        on_skipping: called before indices are skipped, also if that begins again. Returns a function that receives the
            skipped indices, some at a time, and may return counts for them. To be set before the first read.
        came: number of batches that arrived from workers in their own order.
    """

    def __init__(self, start: Position) -> None:
        self.ended = False
        self.unrepeatable = ""
        self.on_skipping: Callable[[], Callable[[list[Any]], list[int] | None]] = lambda: lambda indices: None
        self.came = 0
        self._entries: Iterator[Any] = iter(())
        self._drawn = start.drawn
        self._passed = replace(start, missing=())
        self._owed = list(start.missing)
        self._counts: deque[int] = deque()
        self._entered = 0
        self._ahead: dict[int, tuple[Position, list[Stretch], int]] = {}
        self._coming: deque[int] = deque()

    @property
    def position(self) -> Position:
        """Position of the training. An order that has not been drawn yet is drawn now."""
        if self._drawn is None:
            self._entries = chain(list(islice(self._entries, 1)), self._entries)
        ahead = (stretch for _, stretches, _ in self._ahead.values() for stretch in stretches)
        missing = [*self._owed, *(stretch for stretch in ahead if stretch[0] < self._passed.samples)]
        return replace(self._passed, drawn=self._drawn, missing=tuple(sorted(missing)))

    @property
    def size(self) -> int:
        """Size of the batches that can be foreseen, if torch's rule makes them; otherwise 1."""
        return 1

    def foresee(self, behind: int) -> list[Any] | None:
        """Return the indices of a later batch; None if they are not known yet.

        Args:
            behind: number of batches that come before it.
        """

    def comes(self, number: int) -> None:
        """Note that this batch will be passed next, after those noted before.

        Args:
            number: of the batch in this reading.
        """
        self.came += 1
        self._coming.append(number)

    def passed(self) -> int:
        """Note that the training has received the next batch, or its error.

        Returns:
            Size of the batch in samples; 0 if none was read.
        """
        number = self._coming.popleft() if self._coming else next(iter(self._ahead), -1)
        position, _, size = self._ahead.pop(number, (self._passed, [], 0))
        if position.samples > self._passed.samples:  # not so where the sampler itself has failed, or what was owed came
            self._passed = position
        return size

    @property
    def waits(self) -> bool:
        """True if a batch was read and not passed."""
        return bool(self._ahead)

    def give_up(self) -> None:
        """Drop the batches that were read and not passed, because making them was interrupted."""
        while self._ahead:
            self.passed()

    def counted(self, samples: int) -> list[int]:
        """Return the counts of samples that were skipped, and now come after all.

        Args:
            samples: size of the batch that has just been read, which begins with these samples.
        """
        return [self._counts.popleft() for _ in range(min(samples, len(self._counts)))]

    def _enter(self, position: Position, stretches: list[Stretch], size: int) -> None:
        """Record that a batch was read.

        Args:
            position: position after it.
            stretches: ranges that its samples are from.
            size: in samples.
        """
        self._ahead[self._entered] = position, stretches, size
        self._entered += 1

    def _repaid(self, samples: int) -> list[Stretch]:
        """Remove the owed ranges, which come first, that the next samples are from, and return them.

        Args:
            samples: number of samples that are read next.
        """
        found: list[Stretch] = []
        while samples and self._owed:
            begin, end = self._owed.pop(0)
            middle = min(end, begin + samples)
            found.append((begin, middle))
            samples -= middle - begin
            if middle < end:
                self._owed.insert(0, (middle, end))
        return found
