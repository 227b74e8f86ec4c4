"""The entries of an order as they are read from the samplers, for the first time or drawn again.

Like everything on a batch's way, these are not generators: a generator ends with the first exception from outside, such
as a signal handler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sophon_loader.order.generators import States
from sophon_loader.order.reading import Drawn
from sophon_loader.pipeline.op import GENERATORS

if TYPE_CHECKING:
    from sophon_loader.order.order import SamplerReading

_WATCHED = 4
"""Number of reads per iteration that are checked for draws from global generators; after that the digest shows a
difference."""
_END = object()


class Anew(Iterator[Any]):
    """The entries of an order that is drawn for the first time.

    Args:
        reading: the reading that holds this.
        entries: iterator over the samplers.
        at_iter: states of the generators before that iterator was made.
        drew: names of the generators that changed when it was made.
        own: the sampler's own state from before.
    """

    def __init__(self, reading: SamplerReading, entries: Iterator[Any], at_iter: States, drew: set[str], own: Any):
        self._reading = reading
        self._entries = entries
        self._from = at_iter, drew, own
        self._before: States | None = None
        self._left = _WATCHED + 1

    def __next__(self) -> Any:
        if not self._left:
            return next(self._entries)
        take = self._reading._order.generators.take
        if self._left > _WATCHED:
            return self._first(take)
        before = take()
        entry = next(self._entries)
        self._left -= 1
        for name in changed(before, take()) & set(GENERATORS):
            self._reading.unrepeatable = f"which draws from the global generator of {name} between batches"
        return entry

    def _first(self, take: Callable[[], States]) -> Any:
        if self._before is None:
            self._before = take()  # once: what was drawn before an exception from outside counts
        entry = next(self._entries, _END)
        if entry is _END and self._from[2] is not None:
            # Its state said that it had ended, and now it begins: so torchdata's StatefulDistributedSampler.
            self._entries = self._reading.begun(self._reading._order)
            entry = next(self._entries, _END)
        self.note(begun=True)
        self._left -= 1
        if entry is _END:
            raise StopIteration
        return entry

    def note(self, *, begun: bool = False) -> bool:
        """Tell the reading which states its order was drawn from; True if it has been drawn.

        Args:
            begun: True if it has been drawn for certain.
        """
        at_iter, drew, own = self._from
        before = self._before
        drawn_from = set() if before is None else changed(before, self._reading._order.generators.take())
        if before is not None and (begun or drawn_from):
            self._reading.note(before, at_iter if drew else None, drew | drawn_from, own)
        return begun or bool(drawn_from)

    def begun_anew(self) -> Anew:
        """Return the entries from the beginning, if nothing has been drawn yet."""
        again = Anew(self._reading, self._reading.begun(self._reading._order), *self._from)
        again._before = self._before
        return again


class Again(Iterator[Any]):
    """The entries of an order that was drawn before, from the start of its reading on.

    Args:
        reading: the reading that holds this.
        order: states that the order was drawn from.

    Attributes:
        drawn: True once it has been drawn again.
    """

    def __init__(self, reading: SamplerReading, order: Drawn) -> None:
        self._reading = reading
        self._from = order
        self._entries: Iterator[Any] | None = None

    @property
    def drawn(self) -> bool:
        return self._entries is not None

    def __next__(self) -> Any:
        if self._entries is None:
            self._entries = self._reading.again(self._from)
        return next(self._entries)


class Rest(Iterator[Any]):
    """The remaining entries of an iterator, without calling its `iter()` a second time.

    An object that is its own iterator may begin again on that call, as Lightning's does for `predict`.
    """

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __next__(self) -> Any:
        return next(self._entries)


def changed(before: States, after: States) -> set[str]:
    """Return the names of generators whose states differ.

    Args:
        before, after: states by name; names in only one of them are ignored.
    """
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}
