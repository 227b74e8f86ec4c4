"""Replies on their way to the socket: which is next, how fast they may leave, and which clients do not take them.

Pure: the clock is an argument.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage_agent.jobs.turns import Turns

Reply = TypeVar("Reply")
BURST_S = 0.005
"""Seconds by which a reply may leave before the wire is free for it, so that the wire is not idle while the broker
wakes up."""
RETRY_S, MAX_RETRY_S = 0.005, 0.08
"""First pause after a client did not take a reply, and the longest one, s. Pauses grow for a client that took few
replies since the last."""
FEW, MANY = 2, 4
"""Replies that a client took between two pauses: up to `FEW`, its pauses grow; above `MANY`, they shrink again."""
FULL_NBYTES = 4 << 20
"""Bytes of a client's waiting replies above which no more are made for it: about 30 pictures ahead of its wire."""
ALL_NBYTES = 256 << 20
"""Bytes of all clients' waiting replies. If the sum of `FULL_NBYTES` is more, each client may have its share of
this."""


@dataclass
class Pauses:
    """Pause after a client did not take a reply, s, and the number of replies that it took since the last pause."""

    pause_s: float = RETRY_S
    taken: int = MANY

    def next_s(self) -> float:
        """Return the pause after another reply that was not taken, long enough for the client to have room for a
        few."""
        if self.taken <= FEW:
            self.pause_s = min(2 * self.pause_s, MAX_RETRY_S)
        elif self.taken > MANY:
            self.pause_s = max(self.pause_s / 2, RETRY_S)
        self.taken = 0
        return self.pause_s


@dataclass(frozen=True)
class Waiting(Generic[Reply]):
    """A reply, its receiver and its size."""

    client: bytes
    nbytes: int
    reply: Reply


class Pacer(Generic[Reply]):
    """Waiting replies. Clients take turns by bytes, and all share one byte rate.

    Args:
        limit_mbit: 10**6 bits per second; None for no limit.

    Attributes:
        nbytes: bytes of all waiting replies.

    Example:
        >>> pacer: Pacer[str] = Pacer(limit_mbit=8.0)
        >>> pacer.put(b"loader", 1_000_000, "first"), pacer.put(b"loader", 1, "second")
        (None, None)
        >>> first = pacer.due(now_s=0.0)
        >>> pacer.sent(first, now_s=0.0)
        >>> pacer.due(now_s=0.5), pacer.due(now_s=1.0).reply
        (None, 'second')
    """

    def __init__(self, limit_mbit: float | None) -> None:
        self._s_per_byte = 8e-6 / limit_mbit if limit_mbit else 0.0
        self._turns: Turns[Waiting[Reply]] = Turns()
        self._free_at_s = 0.0
        self._nbytes: dict[bytes, int] = {}
        """Client -> bytes of its waiting replies, if there are any."""
        self._paused: dict[bytes, float] = {}
        """Clients that did not take a reply -> time of the next attempt."""
        self._retries: list[tuple[float, bytes]] = []
        """A heap of these times. It may have outdated entries."""
        self._pauses: dict[bytes, Pauses] = {}
        self._full: set[bytes] = set()
        self._changes: deque[tuple[bytes, bool]] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def waiting_of(self, client: bytes) -> int:
        """Return the number of a client's waiting replies."""
        return self._turns.waiting_of(client)

    def nbytes_of(self, client: bytes) -> int:
        """Return the bytes of a client's waiting replies."""
        return self._nbytes.get(client, 0)

    def put(self, client: bytes, nbytes: int, reply: Reply, *, first: bool = False) -> None:
        """Queue a reply.

        Args:
            client: the receiver.
            nbytes: its size.
            reply: what `due` returns.
            first: True to put it before the client's other replies.
        """
        self._turns.push(client, Waiting(client, nbytes, reply), first=first)
        self._count(client, nbytes)

    def due(self, now_s: float) -> Waiting[Reply] | None:
        """Return the next reply if the wire is free for it; the caller then calls `sent` or `returned`."""
        while self._retries and self._retries[0][0] <= now_s:
            at_s, client = heapq.heappop(self._retries)
            if self._paused.get(client) == at_s:
                del self._paused[client]
                self._turns.hold(client, False)
        if now_s < self._free_at_s - BURST_S:
            return None
        turn = self._turns.pop()
        return turn[1] if turn else None

    def is_free(self, now_s: float) -> bool:
        """True if a new reply may leave at once: no other waits, and the wire is free."""
        return not self._turns and now_s >= self._free_at_s - BURST_S

    def passed(self, nbytes: int, now_s: float) -> None:
        """Note that a reply has left without waiting. It does not count as a client's turn.

        Args:
            nbytes: its size.
            now_s: the time.
        """
        self._free_at_s = max(now_s, self._free_at_s) + nbytes * self._s_per_byte

    def sent(self, waiting: Waiting[Reply], now_s: float) -> None:
        """Note that a reply has left, or that its client is gone.

        Args:
            waiting: the reply, from `due`.
            now_s: the time.
        """
        self.passed(waiting.nbytes, now_s)
        if (pauses := self._pauses.get(waiting.client)) is not None:
            pauses.taken += 1
        self._turns.spent(waiting.client, max(1, waiting.nbytes))
        self._count(waiting.client, -waiting.nbytes)

    def returned(self, waiting: Waiting[Reply], now_s: float) -> None:
        """Put back a reply that the client did not take, in front of its others.

        Args:
            waiting: the reply, from `due`.
            now_s: the time.
        """
        self._turns.spent(waiting.client, 0.0)
        self._turns.push(waiting.client, waiting, first=True)
        self._turns.hold(waiting.client, True)
        at_s = now_s + self._pauses.setdefault(waiting.client, Pauses()).next_s()
        self._paused[waiting.client] = at_s
        heapq.heappush(self._retries, (at_s, waiting.client))

    def drop(self, client: bytes) -> int:
        """Forget a client that has left; returns the number of its lost replies."""
        left = len(self._turns.drop(client))
        self.nbytes -= self._nbytes.get(client, 0)
        for known in (self._nbytes, self._paused, self._pauses):
            known.pop(client, None)
        if client in self._full:
            self._full.discard(client)
            self._changes = deque(change for change in self._changes if change[0] != client)
            self._changes.append((client, False))
        return left

    def changes(self) -> Iterator[tuple[bytes, bool]]:
        """Yield (client, True) for clients that have become full, (client, False) for those that no longer are."""
        while self._changes:
            yield self._changes.popleft()

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until a reply may be due; None if none waits."""
        if not self._turns:
            return None  # except retries of clients that have left, which need no wake-up
        if len(self._turns) > sum(map(self._turns.waiting_of, self._paused)):
            return max(0.0, self._free_at_s - BURST_S - now_s)
        return max(0.0, self._retries[0][0] - now_s)

    def _count(self, client: bytes, nbytes: int) -> None:
        before = self._nbytes.get(client, 0)
        total = max(0, before + nbytes)
        self.nbytes += total - before
        if total > 0:
            self._nbytes[client] = total
        else:
            self._nbytes.pop(client, None)
        most = min(FULL_NBYTES, ALL_NBYTES // max(1, len(self._nbytes)))
        full = total > (most // 2 if client in self._full else most)
        if full != (client in self._full):
            (self._full.add if full else self._full.discard)(client)
            self._changes.append((client, full))
