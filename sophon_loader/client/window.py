"""How many samples may be unanswered: enough to keep a long way to the agent full, and not many more. No clock.

At a rate r over a round trip t, r x t bytes are on their way: the bandwidth-delay product. As TCP's BBR does (Cardwell
and others, "BBR: Congestion-Based Congestion Control", 2016), twice that may be, with r the highest rate of the last
seconds and t the shortest round trip. So the window doubles with every round trip until the way is full, and stands
still once a reply takes twice as long as the first one did.
"""

from __future__ import annotations

import math
from typing import NamedTuple

FLOOR = 64
"""Samples that may be unanswered before anything has been measured, and always: over a short way, they keep the agent's
workers and the wire busy while the loader's worker decodes, collates or waits for the training step."""
_GAIN = 2.0
_RATE_S = 2.0
"""The highest rate counts for one to two such times."""
_ROUND_TRIP_S = 60.0
"""The shortest round trip is measured anew once it is older than that, and nothing is on its way."""
_MEAN_OF = 32
"""Replies that the mean size of one looks back on, about."""
_QUEUES = 1.5
"""A reply that took so many times the shortest round trip has waited for others."""


class Mark(NamedTuple):
    """What is remembered of a request until it is answered.

    Args:
        asked_s: when it was asked for, s.
        delivered_nbytes: that had come by then, in all.
        since_s: when the last of them came, s; when nothing was on its way, the same as `asked_s`.
        again: whether it was asked for before: nobody knows which of the requests is answered (Karn's rule).
    """

    asked_s: float
    delivered_nbytes: int
    since_s: float
    again: bool


class RequestWindow:
    """The window of one connection.

    Args:
        most: samples that may be unanswered at most.
        most_nbytes: that they may come to, by the mean of those that have come; with what has come and still lies here.

    Attributes:
        rate: bytes/s, the highest lately; 0 before the first reply.
        round_trip_s: the shortest, without the time for which a sample waited for a worker of the agent; None before
            the first reply.
        mean_nbytes: of a reply; 0 before the first.

    Example:
        >>> window = RequestWindow(most=512, most_nbytes=32 << 20)
        >>> mark = window.asked(0, now_s=0.0)
        >>> window.answered(mark, 100_000, queued_s=0.0, now_s=0.1)
        >>> window.samples(held_nbytes=0)
        64
    """

    def __init__(self, most: int, most_nbytes: int) -> None:
        self._most = most
        self._most_nbytes = most_nbytes
        self._replies = 0
        self._delivered_nbytes = 0
        self._delivered_s = 0.0
        self._period_s = 0.0
        """When the time began of which `_rates[1]` is the highest rate, s; `_rates[0]` is that of the time before."""
        self._rates = [0.0, 0.0]
        self._learnt_s = 0.0
        """When `round_trip_s` was measured for the first time since it was forgotten, s."""
        self._turnaround_s = 0.0
        """Of the newest reply."""
        self.round_trip_s: float | None = None
        self.mean_nbytes = 0.0

    @property
    def rate(self) -> float:
        return max(self._rates)

    @property
    def queues(self) -> bool:
        """Whether replies wait for one another, on the wire or at the agent: more requests would not bring more."""
        return self.round_trip_s is not None and self._turnaround_s > _QUEUES * self.round_trip_s

    def samples(self, held_nbytes: int) -> int:
        """How many may be unanswered now; one always may, or nothing would go on.

        Args:
            held_nbytes: of the replies that have come and that nobody has worked on.
        """
        wanted = min(FLOOR, self._most)
        if self.mean_nbytes and self.round_trip_s is not None:
            on_their_way = _GAIN * self.rate * self.round_trip_s / self.mean_nbytes
            wanted = min(self._most, max(wanted, math.ceil(on_their_way)))
        if self.mean_nbytes:
            wanted = min(wanted, int((self._most_nbytes - held_nbytes) / self.mean_nbytes))
        return max(1, wanted)

    def asked(self, unanswered: int, now_s: float, *, again: bool = False) -> Mark:
        """A sample is asked for.

        Args:
            unanswered: others that are on their way.
            now_s: the time, s.
            again: whether it was asked for before.
        """
        if not unanswered:
            self._delivered_s = now_s
            if now_s - self._learnt_s > _ROUND_TRIP_S:
                self.round_trip_s = None
        return Mark(now_s, self._delivered_nbytes, self._delivered_s, again)

    def answered(self, mark: Mark, nbytes: int, queued_s: float, now_s: float) -> None:
        """Its reply has come.

        Args:
            mark: what `asked` gave.
            nbytes: of the reply.
            queued_s: for how long it waited for a worker of the agent, s; a longer queue there is no longer way.
            now_s: the time, s.
        """
        self._replies += 1
        self.mean_nbytes += (nbytes - self.mean_nbytes) / min(self._replies, _MEAN_OF)
        self._delivered_nbytes += nbytes
        self._delivered_s = now_s
        if mark.again:
            return
        self._turnaround_s = now_s - mark.asked_s
        self._note_round_trip(max(0.0, self._turnaround_s - queued_s), now_s)
        # From the last delivery before it was asked for: what had gathered while nobody looked did not come just now.
        elapsed_s = now_s - mark.since_s
        if elapsed_s > 0:
            self._note_rate((self._delivered_nbytes - mark.delivered_nbytes) / elapsed_s, now_s)

    def _note_round_trip(self, round_trip_s: float, now_s: float) -> None:
        if self.round_trip_s is None:
            self.round_trip_s, self._learnt_s = round_trip_s, now_s
        self.round_trip_s = min(self.round_trip_s, round_trip_s)

    def _note_rate(self, rate: float, now_s: float) -> None:
        if now_s - self._period_s > _RATE_S:
            self._rates, self._period_s = [self._rates[1], 0.0], now_s
        self._rates[1] = max(self._rates[1], rate)
