"""Pacing of replies to a number of Mbit/s, for showing a slow wire on a fast one. Pure: the clock is an argument."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Reply = TypeVar("Reply")
BURST_S = 0.005
"""A reply may leave this much before the wire is free for it, which then does not idle while the broker wakes up."""


class Pacer(Generic[Reply]):
    """A queue whose entries come due at a byte rate.

    Args:
        limit_mbit: 10**6 bits per second; None lets everything through at once.

    Example:
        >>> pacer: Pacer[str] = Pacer(limit_mbit=8.0)
        >>> pacer.put(1_000_000, "first"), pacer.put(1, "second")
        (None, None)
        >>> pacer.due(now_s=0.0), pacer.due(now_s=0.5), pacer.due(now_s=1.0)
        ('first', None, 'second')
    """

    def __init__(self, limit_mbit: float | None) -> None:
        self._s_per_byte = 8e-6 / limit_mbit if limit_mbit else 0.0
        self._queue: deque[tuple[int, Reply]] = deque()
        self._free_at_s = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, nbytes: int, reply: Reply) -> None:
        """Queue a reply.

        Args:
            nbytes: its size.
            reply: what `due` gives back.
        """
        self._queue.append((nbytes, reply))

    def due(self, now_s: float) -> Reply | None:
        """The next reply, if the wire is free for it at `now_s`."""
        if not self._queue or now_s < self._free_at_s - BURST_S:
            return None
        nbytes, reply = self._queue.popleft()
        self._free_at_s = max(now_s, self._free_at_s) + nbytes * self._s_per_byte
        return reply

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something may be due; None when nothing is queued."""
        return max(0.0, self._free_at_s - BURST_S - now_s) if self._queue else None
