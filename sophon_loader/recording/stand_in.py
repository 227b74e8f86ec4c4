"""Functions that stand at a name of another library while samples are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StandIn:
    """A function that stands in for another one at a name, for as long as any thread needs it.

    What somebody else puts there meanwhile stays there.

    Args:
        holder: the module or class that has the name.
        name: of the function.
        make: makes the function that stands in, given the one that stood there.

    Example:
        >>> hook = StandIn(Image, "open", lambda before: counting(before))
        >>> hook.place()
        >>> hook.take_away()
        True
    """

    def __init__(self, holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._holder, self._name, self._make = holder, name, make
        self._before: Any = None
        self._hook: Any = None

    def place(self) -> None:
        """Have it stand there."""
        now = getattr(self._holder, self._name)
        if now is self._hook:  # for another thread
            return
        if now is not self._before:
            self._before, self._hook = now, self._make(now)
        setattr(self._holder, self._name, self._hook)

    def take_away(self) -> bool:
        """Put back what stood there; False if something else stands there by now."""
        stood = getattr(self._holder, self._name) is self._hook
        if stood:
            setattr(self._holder, self._name, self._before)
        return stood
