"""Stores that are away: since when each is, for how long samples wait for it, and who hears of it.

A store is away while no read of its location succeeds, and those that fail find nobody, or a server that has no time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

AWAY_S = 60.0
"""Samples wait so long for a store that is away. Their loader hears meanwhile that the agent is at work on them."""
_TOLD_AFTER_S = 2.0
"""What is over sooner is an ordinary hiccup: nobody hears of it."""
_GAP_S = 15.0
"""After so long without a failure, the next one begins anew: nobody has tried, so nobody knows. A try takes 10 s."""


@dataclass
class _Outage:
    since_s: float
    last_s: float
    told: bool = False


class Outages:
    """Of all locations that a process reads; safe under threads.

    Args:
        tell: called with a location, why it is away ("" once it is back), and for how long it has been, s.
        now_s: the time.

    Example:
        >>> outages = Outages(print)
        >>> outages.failed("s3://photos", "it cannot be reached")
        0.0
        >>> outages.worked("s3://photos")
    """

    def __init__(self, tell: Callable[[str, str, float], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._now_s = now_s
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}

    def failed(self, location: str, why: str) -> float:
        """A read has found the store away; for how long it has been, s."""
        with self._lock:
            now_s = self._now_s()
            one = self._outages.setdefault(location, _Outage(now_s, now_s))
            if now_s - one.last_s > _GAP_S:
                one.since_s = now_s
            one.last_s = now_s
            away_s = now_s - one.since_s
            if away_s >= _TOLD_AFTER_S and not one.told:
                one.told = True
                self._tell(location, why, away_s)
        return away_s

    def worked(self, location: str) -> None:
        """The store has answered."""
        if location not in self._outages:
            return
        with self._lock:
            one = self._outages.pop(location, None)
            if one is not None and one.told:
                self._tell(location, "", self._now_s() - one.since_s)
