"""Replies on their way to the socket: whose is next, how fast they may go, who does not take them.

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
"""A reply may leave this much before the wire is free for it, which then does not idle while the broker wakes up."""
RETRY_S, MAX_RETRY_S = 0.005, 0.08
"""The pause after a client did not take a reply, and the longest, of a client that took next to none after the last."""
FEW, MANY = 2, 4
"""Replies that a client took between two pauses: up to so few, and its pauses grow; from so many, they shrink again."""
FULL_NBYTES = 4 << 20
"""Replies of one client that may wait before nothing more is made for it: some 30 pictures ahead of its wire."""
ALL_NBYTES = 256 << 20
"""Replies of all clients that may wait; if that is less, each may have its share of it."""


@dataclass
class Pauses:
    """How long a client is left alone after it did not take a reply, s, and the replies that it took since the last."""

    pause_s: float = RETRY_S
    taken: int = MANY

    def next_s(self) -> float:
        """It did not take one again: how long this time, so that it then has room for a few."""
        if self.taken <= FEW:
            self.pause_s = min(2 * self.pause_s, MAX_RETRY_S)
        elif self.taken > MANY:
            self.pause_s = max(self.pause_s / 2, RETRY_S)
        self.taken = 0
        return self.pause_s


@dataclass(frozen=True)
class Waiting(Generic[Reply]):
    """A reply, to whom it goes, and its size."""

    client: bytes
    nbytes: int
    reply: Reply


class Pacer(Generic[Reply]):
    """Replies that wait, with turns of clients by bytes, all together at a byte rate.

    Args:
        limit_mbit: 10**6 bits per second; None lets everything through at once.

    Attributes:
        nbytes: of all replies that wait.

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
        """What waits of each client that has something waiting."""
        self._paused: dict[bytes, float] = {}
        """Clients that did not take a reply, and when they are tried again."""
        self._retries: list[tuple[float, bytes]] = []
        """The same as a heap, with entries that hold no more."""
        self._pauses: dict[bytes, Pauses] = {}
        self._full: set[bytes] = set()
        self._changes: deque[tuple[bytes, bool]] = deque()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def waiting_of(self, client: bytes) -> int:
        """How many replies of a client wait."""
        return self._turns.waiting_of(client)

    def nbytes_of(self, client: bytes) -> int:
        """Bytes of a client's replies that wait."""
        return self._nbytes.get(client, 0)

    def put(self, client: bytes, nbytes: int, reply: Reply, *, first: bool = False) -> None:
        """Queue a reply.

        Args:
            client: to whom.
            nbytes: its size.
            reply: what `due` gives back.
            first: before the client's others.
        """
        self._turns.push(client, Waiting(client, nbytes, reply), first=first)
        self._count(client, nbytes)

    def due(self, now_s: float) -> Waiting[Reply] | None:
        """The next reply, if the wire is free for it at `now_s`; say then whether it was `sent` or `returned`."""
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
        """Whether a reply that comes now may go at once: no other waits, and the wire is free."""
        return not self._turns and now_s >= self._free_at_s - BURST_S

    def passed(self, nbytes: int, now_s: float) -> None:
        """A reply of so many bytes has gone that has not waited. It costs nobody a turn."""
        self._free_at_s = max(now_s, self._free_at_s) + nbytes * self._s_per_byte

    def sent(self, waiting: Waiting[Reply], now_s: float) -> None:
        """A reply has gone, or there is nobody for it."""
        self.passed(waiting.nbytes, now_s)
        if (pauses := self._pauses.get(waiting.client)) is not None:
            pauses.taken += 1
        self._turns.spent(waiting.client, max(1, waiting.nbytes))
        self._count(waiting.client, -waiting.nbytes)

    def returned(self, waiting: Waiting[Reply], now_s: float) -> None:
        """The client did not take it: it waits on, in front of its others."""
        self._turns.spent(waiting.client, 0.0)
        self._turns.push(waiting.client, waiting, first=True)
        self._turns.hold(waiting.client, True)
        at_s = now_s + self._pauses.setdefault(waiting.client, Pauses()).next_s()
        self._paused[waiting.client] = at_s
        heapq.heappush(self._retries, (at_s, waiting.client))

    def drop(self, client: bytes) -> int:
        """A client has left: how many replies it will not get."""
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
        """Clients that have become full (nothing more should be made for them), or are so no longer."""
        while self._changes:
            yield self._changes.popleft()

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until something may be due; None when nothing is queued."""
        if not self._turns:
            return None  # but for retries of clients that have left, which nobody has to wake up for
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
