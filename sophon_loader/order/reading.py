"""How far an epoch has come with its samplers, and from what their order was drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from sophon_loader.order.generators import Packed

Stretch = tuple[int, int]
"""From one sample of an order to before another."""


@dataclass(frozen=True)
class Drawn:
    """From what an order was drawn.

    Args:
        at_first: what the generators stood at before the first index was read.
        at_iter: what they stood at before `iter(sampler)`; None if that drew nothing.
        own: what the sampler's `state_dict()` gave before that; None if it has none.
    """

    at_first: Packed
    at_iter: Packed | None = None
    own: Any = None


@dataclass(frozen=True)
class Position:
    """How far an epoch has come.

    Args:
        samples: up to the last one delivered, over all ranks where the loader shards.
        digest: of their indices; empty where the loader shards, whose order follows from the seed.
        drawn: from what the order was drawn; None before it is, and where the loader shards.
        missing: stretches of them, from one to before another, that have not been delivered: where batches come as
            they are made (`in_order=False`), so no more than workers have in hand.
    """

    samples: int = 0
    digest: str = ""
    drawn: Drawn | None = None
    missing: tuple[Stretch, ...] = ()


class Reading(Iterator[Any]):
    """One iteration over the samplers, and how far the training has come with it.

    Where it goes on, what was missing before that place comes first.

    Attributes:
        ended: whether the training was told that it is over.
        unrepeatable: why its order cannot be drawn again; "" if nothing is known against it.
        on_skipping: called when indices are about to be skipped, also if that is begun anew; gives what is told them,
            some at a time, and may count them. To be set before the first read.
        came: batches that have come from workers in an order of their own.
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
        """How far the training has come; an order that has not been drawn yet is drawn now."""
        if self._drawn is None:
            self._entries = chain(list(islice(self._entries, 1)), self._entries)
        ahead = (stretch for _, stretches, _ in self._ahead.values() for stretch in stretches)
        missing = [*self._owed, *(stretch for stretch in ahead if stretch[0] < self._passed.samples)]
        return replace(self._passed, drawn=self._drawn, missing=tuple(sorted(missing)))

    @property
    def size(self) -> int:
        """Of the batches that are foreseen, as far as they are made by torch's rule; else 1."""
        return 1

    def foresee(self, behind: int) -> list[Any] | None:
        """A batch that comes later, if it is known by now; of indices one.

        Args:
            behind: how many come before it.
        """

    def comes(self, number: int) -> None:
        """Of the batches that have not been passed, this one is passed next, or behind those told before.

        Args:
            number: of the batch in this reading.
        """
        self.came += 1
        self._coming.append(number)

    def passed(self) -> int:
        """The training has had the next batch, or its failure; its size in samples, 0 if none had been read."""
        number = self._coming.popleft() if self._coming else next(iter(self._ahead), -1)
        position, _, size = self._ahead.pop(number, (self._passed, [], 0))
        if position.samples > self._passed.samples:  # not so where the sampler itself has failed, or what was owed came
            self._passed = position
        return size

    @property
    def waits(self) -> bool:
        """Whether anything has been read and not passed."""
        return bool(self._ahead)

    def give_up(self) -> None:
        """The batches that have been read and not passed do not come: what made them was interrupted."""
        while self._ahead:
            self.passed()

    def counted(self, samples: int) -> list[int]:
        """What was counted of samples as they were passed over, which now come after all.

        Args:
            samples: of the batch that has just been read, of which these are the first.
        """
        return [self._counts.popleft() for _ in range(min(samples, len(self._counts)))]

    def _enter(self, position: Position, stretches: list[Stretch], size: int) -> None:
        """A batch has been read.

        Args:
            position: behind it.
            stretches: that it is of.
            size: in samples.
        """
        self._ahead[self._entered] = position, stretches, size
        self._entered += 1

    def _repaid(self, samples: int) -> list[Stretch]:
        """Of so many samples that are read next, the stretches that were owed: those come first."""
        found: list[Stretch] = []
        while samples and self._owed:
            begin, end = self._owed.pop(0)
            middle = min(end, begin + samples)
            found.append((begin, middle))
            samples -= middle - begin
            if middle < end:
                self._owed.insert(0, (middle, end))
        return found
