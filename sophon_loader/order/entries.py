"""The entries of an order as they are read of the samplers: drawn now, or drawn again.

Like all that a batch passes these are no generators, which would end with the first exception from outside, as of a
signal's handler.
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
"""So many reads of an iteration are watched for draws from global generators; the digest shows the rest."""
_END = object()


class Anew(Iterator[Any]):
    """The entries of an order that is drawn now. Like all that a batch passes it is no generator, which would end with
    the first exception from outside, as of a signal's handler.

    Args:
        reading: that this is of, which holds it.
        entries: of the samplers.
        at_iter: what the generators stood at before those were begun.
        drew: which of them have changed since then.
        own: what the sampler said of itself before.
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
        """Tell the reading from what its order is drawn, if it has been drawn; whether it has.

        Args:
            begun: whether it certainly has.
        """
        at_iter, drew, own = self._from
        before = self._before
        drawn_from = set() if before is None else changed(before, self._reading._order.generators.take())
        if before is not None and (begun or drawn_from):
            self._reading.note(before, at_iter if drew else None, drew | drawn_from, own)
        return begun or bool(drawn_from)

    def begun_anew(self) -> Anew:
        """The same from the beginning, where nothing has been drawn."""
        again = Anew(self._reading, self._reading.begun(self._reading._order), *self._from)
        again._before = self._before
        return again


class Again(Iterator[Any]):
    """The entries of an order that was drawn before, behind the start of its reading.

    Args:
        reading: that this is of, which holds it.
        order: from what it was drawn.

    Attributes:
        drawn: whether it has been drawn again.
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
    """What an iterator has yet to give. To loop over it would ask for its `iter()` again, and one that is its own
    iterator may then begin anew, as Lightning's for `predict` does."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self._entries = entries

    def __next__(self) -> Any:
        return next(self._entries)


def changed(before: States, after: States) -> set[str]:
    """Which generators were drawn from."""
    return {name for name in before.keys() & after.keys() if before[name] != after[name]}
