"""Functions that replace those of another library while samples are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from sophon_loader.pipeline.shipped import mark_stand_in

_Value = TypeVar("_Value")
_KEPT = 8
"""Number of functions that are recognised if they are found at a name again."""


class StandIn:
    """Replaces the function at a name, for as long as any thread needs it.

    A function that other code puts there meanwhile stays there.

    Args:
        holder: the module or class that has the name.
        name: of the function.
        make: takes the function at the name, and returns its replacement.

    Example:
        >>> hook = StandIn(Image, "open", lambda before: counting(before))
        >>> hook.place()
        >>> hook.take_away()
        True
    """

    def __init__(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._holder, self._name, self._make = holder, name, make
        self._made: list[tuple[Any, Any]] = []
        """(function that was there, its replacement), the newest ones. Threads that arrive at the same time may each
        make one, so any of them may be at the name."""

    def place(self) -> None:
        """Put the replacement there."""
        now = getattr(self._holder, self._name)
        if any(hook is now for _, hook in self._made):  # for another thread
            return
        hook = next((hook for before, hook in self._made if before is now), None)
        if hook is None:
            hook = self._make(now)
            mark_stand_in(hook, now)
            self._made.append((now, hook))
            del self._made[:-_KEPT]
        setattr(self._holder, self._name, hook)

    def take_away(self) -> bool:
        """Put back the function that was there; returns False if the function there now is not ours."""
        now = getattr(self._holder, self._name)
        for before, hook in self._made:
            if hook is now:
                setattr(self._holder, self._name, before)
                return True
        return False


class PerThread(Generic[_Value]):
    """Replaces functions while any thread has a value for them, each thread its own.

    Threads come and go without a lock, which a fork might copy.

    Args:
        stand_ins: the functions.

    Example:
        >>> pictures = PerThread(StandIn(Image, "open", opening))
        >>> with pictures.within(these):
        ...     assert pictures.now is these
    """

    def __init__(self, *stand_ins: StandIn) -> None:
        self.stand_ins = stand_ins
        self._values: dict[int, _Value] = {}

    @property
    def now(self) -> _Value | None:
        """This thread's value; None outside of `within`."""
        return self._values.get(threading.get_ident())

    @contextmanager
    def within(self, value: _Value) -> Iterator[None]:
        """Within the block, this thread has that value, and the replacements are in place."""
        thread = threading.get_ident()
        outer = self._values.get(thread)
        self._values[thread] = value
        try:
            for one in self.stand_ins:
                one.place()
            yield
        finally:
            if outer is not None:
                self._values[thread] = outer
            else:
                del self._values[thread]
            if not self._values:
                for one in self.stand_ins:
                    one.take_away()
