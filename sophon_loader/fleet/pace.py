"""How fast each agent of a fleet delivers, and what share of the samples it should be asked for. No clock.

Time counts in which an agent certainly had requests to answer: between moments at which a worker waits, when all that
has come has been taken. So a worker that is slow itself says nothing about its agents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST = 1 / 16
"""Weight of the slowest agent, by that of the fastest: enough to see that it is fast again."""
_RECENT_S, _RECENT = 2.0, 128
"""What is older, in seconds or in samples, counts for less and less."""
_ENOUGH_S, _ENOUGH = 0.1, 4
"""Nothing is known before an agent has been waited for so long, or has sent so many samples meanwhile."""
UNKNOWN = _ENOUGH / _ENOUGH_S
"""Samples per second of an agent of which nothing is known because it was never waited for, at least."""
_FAR, _LONG_S = 3.0, 0.25
"""Agents that have nothing to do take over from one that is so many times slower, where they save so much, s: it sends
what it was asked for all the same, and that keeps it from other samples."""
_LEAST_S = 1e-4
"""No sample takes less."""


class Pace:
    """Samples per second of one agent, as a worker sees it.

    Example:
        >>> pace = Pace()
        >>> pace.see(10.0, unanswered=8, answers=0, just_now=False)
        >>> pace.see(11.0, unanswered=4, answers=4, just_now=True)
        >>> pace.rate
        5.0
    """

    def __init__(self) -> None:
        self._samples = self._busy_s = 0.0
        self._since_s: float | None = None
        """Since when it has had requests, or since when they have been counted; None while it has none."""
        self._answers = 0

    def see(self, now_s: float, unanswered: int, answers: int, *, just_now: bool) -> None:
        """Nothing that has come is left to be taken.

        Args:
            now_s: the time, s.
            unanswered: requests that the agent has.
            answers: samples that it has sent so far.
            just_now: whether the last one has come in this moment, and not at some time since the last call.
        """
        if self._since_s is not None and (unanswered or just_now):
            seconds, came = now_s - self._since_s, answers - self._answers
            kept = math.exp(-seconds / _RECENT_S - came / _RECENT)
            self._busy_s = kept * self._busy_s + max(seconds, _LEAST_S * came)
            self._samples = kept * self._samples + came
        self._since_s, self._answers = (now_s if unanswered else None), answers

    @property
    def rate(self) -> float | None:
        """Samples per second, as if one more came now; None while too little is known."""
        known = self._busy_s >= _ENOUGH_S or self._samples >= _ENOUGH
        return (self._samples + 1) / self._busy_s if known else None


def weights(rates: Sequence[float | None]) -> list[float]:
    """Shares of the samples, by that of the fastest agent: in [LEAST, 1]; 1 for one of which nothing is known.

    Args:
        rates: of the agents, samples/s; None where unknown.
    """
    best = max((rate for rate in rates if rate is not None), default=0.0)
    return [1.0 if rate is None else max(LEAST, rate / best) for rate in rates]


def too_much(owed: int, unanswered: int, rate: float | None, idle_rate: float) -> int:
    """How many of the samples that one agent owes others should be asked for, which have nothing to do.

    Args:
        owed: by that agent.
        unanswered: requests that it has; those of them that others have taken over are answered all the same, and may
            be before what is owed.
        rate: of it, samples/s; None where unknown.
        idle_rate: of the others, all together.
    """
    if rate is None or idle_rate < _FAR * rate:
        return 0
    count = round(owed * idle_rate / (idle_rate + rate))  # the last one, too
    return count if (count + unanswered - owed) / rate >= _LONG_S else 0
