"""Which loaders there are, by the hosts and keys from which connections come. Pure: the time is an argument.

A job has many connections: its main process one that greets and is closed, its workers some that live for an epoch, and
none during a validation. So it has ended when none has come from there for a while.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

GONE_S = 60.0
"""How long no connection of a loader may be open until it counts as gone."""
MAX_KNOWN = 4096
"""Loaders that are remembered; of others no end is told."""


class Visits:
    """Connections by the loader that they are of.

    Example:
        >>> visits = Visits()
        >>> visits.came("gpu@10.0.0.7"), visits.greeted("gpu@10.0.0.7"), visits.left("gpu@10.0.0.7", 3, now_s=1.0)
        (None, None, None)
        >>> visits.over(now_s=2.0), visits.over(now_s=70.0)
        ({}, {'gpu@10.0.0.7': 3})
    """

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._greeted: OrderedDict[str, None] = OrderedDict()
        self._left: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Of those without a connection: since when, and how many requests their connections left unanswered."""

    def came(self, owner: str) -> None:
        """A connection has sent its first message.

        Args:
            owner: key and host of whoever made it.
        """
        self._open[owner] += 1
        self._left.pop(owner, None)

    def greeted(self, owner: str) -> None:
        """It is a loader's, and not that of somebody who asks for the status."""
        self._greeted[owner] = None
        self._greeted.move_to_end(owner)
        if len(self._greeted) > MAX_KNOWN:
            self._greeted.popitem(last=False)

    def left(self, owner: str, unanswered: int, now_s: float) -> None:
        """A connection has been closed.

        Args:
            owner: see `came`.
            unanswered: requests that have no answer.
            now_s: the time.
        """
        self._open[owner] -= 1
        if self._open[owner] <= 0:
            del self._open[owner]
            if owner in self._greeted:
                self._left[owner] = now_s, unanswered

    def over(self, now_s: float) -> dict[str, int]:
        """Loaders that have gone since this was asked last, and what the last connection of each left unanswered."""
        found = {}
        while self._left and next(iter(self._left.values()))[0] <= now_s - GONE_S:
            owner, (_, unanswered) = self._left.popitem(last=False)
            found[owner] = unanswered
        return found

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until one may be over; None while none may."""
        return max(0.0, next(iter(self._left.values()))[0] + GONE_S - now_s) if self._left else None
