"""The loaders that are connected, by host and key of their connections. Pure: the time is an argument.

A job has many connections. Its main process greets by one that it closes, its workers have some for an epoch, and
during a validation there are none. So a job counts as ended when it has had no connection for a while.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

GONE_S = 60.0
"""Seconds without an open connection after which a loader counts as gone."""
MAX_KNOWN = 4096
"""Maximum number of loaders that are remembered; the end of others is not reported."""


class Visits:
    """Connections by the loader that they belong to.

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
        """Loaders without a connection: since when, and how many requests their connections left unanswered."""

    def came(self, owner: str) -> None:
        """Note that a connection has sent its first message.

        Args:
            owner: key and host of its process.
        """
        self._open[owner] += 1
        self._left.pop(owner, None)

    def greeted(self, owner: str) -> None:
        """Note that a connection is a loader's, and not a request for the status."""
        self._greeted[owner] = None
        self._greeted.move_to_end(owner)
        if len(self._greeted) > MAX_KNOWN:
            self._greeted.popitem(last=False)

    def left(self, owner: str, unanswered: int, now_s: float) -> None:
        """Note that a connection was closed.

        Args:
            owner: see `came`.
            unanswered: number of its unanswered requests.
            now_s: the time.
        """
        self._open[owner] -= 1
        if self._open[owner] <= 0:
            del self._open[owner]
            if owner in self._greeted:
                self._left[owner] = now_s, unanswered

    def over(self, now_s: float) -> dict[str, int]:
        """Return the loaders that have gone since the last call, and the unanswered requests of each one's last
        connection."""
        found = {}
        while self._left and next(iter(self._left.values()))[0] <= now_s - GONE_S:
            owner, (_, unanswered) = self._left.popitem(last=False)
            found[owner] = unanswered
        return found

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a loader may count as gone; None if all are connected."""
        return max(0.0, next(iter(self._left.values()))[0] + GONE_S - now_s) if self._left else None
