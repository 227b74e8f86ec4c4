"""Gives clients turns by the cost of their earlier ones. Pure: no sockets, no clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
_WEIGHT = 0.2
"""Weight of the newest cost in the running mean."""
_SPARE = 64
"""Entries of the line beyond two per client; with more, stale entries are removed."""
NBYTES_PER_S = 125e6
"""Bytes of a reply that cost as much as one second: the speed of a 1 Gbit/s link. Passing bytes on takes the agent's
time, too, and all replies share its link."""


@dataclass
class _Client(Generic[Thing]):
    """Waiting things and account of one client.

    Args:
        waiting: its things, oldest first.
        served: virtual time up to which it has used its share.
        mean: running mean of its things' cost; 0 before the first.
        charged: assumed costs of things that were taken and have not reported theirs.
        held: True if it waits for something other than its turn.
        listed: number of its valid entry in the line; 0 for none.
        start: virtual time of that entry.
    """

    waiting: deque[Thing] = field(default_factory=deque)
    served: float = 0.0
    mean: float = 0.0
    charged: deque[float] = field(default_factory=deque)
    held: bool = False
    listed: int = 0
    start: float = 0.0


class Turns(Generic[Thing]):
    """Waiting things with turns by cost: the client with the least recent cost is next. This is start-time fair queuing
    (Goyal et al. 1996) with equal weights.

    A thing's cost is known when it is done; until then its client's mean counts, or before its first that of all
    clients. The difference is corrected at once, so a client that began with something dear does not wait long. A
    client without waiting things saves nothing up: it starts where the others are.

    Attributes:
        shut: True if nothing may be taken for now.

    Example:
        >>> turns: Turns[str] = Turns()
        >>> turns.push(b"loader", "a job")
        >>> turns.pop()
        (b'loader', 'a job')
        >>> turns.spent(b"loader", 0.02)
    """

    def __init__(self) -> None:
        self._clients: dict[bytes, _Client[Thing]] = {}
        self._line: list[tuple[float, int, bytes, _Client[Thing]]] = []
        """(virtual time at which its next turn starts, serial number, name, client), a heap."""
        self._serial = 0
        self._now = 0.0
        self._mean = 0.0
        self._count = 0
        self.shut = False

    def __len__(self) -> int:
        return self._count

    @property
    def clients(self) -> int:
        """Number of clients with waiting things."""
        return sum(bool(client.waiting) for client in self._clients.values())

    def waiting_of(self, name: bytes) -> int:
        """Return the number of a client's waiting things."""
        client = self._clients.get(name)
        return len(client.waiting) if client else 0

    def waiting(self, name: bytes) -> Sequence[Thing]:
        """Return a client's waiting things, oldest first."""
        client = self._clients.get(name)
        return tuple(client.waiting) if client else ()

    def expected(self, name: bytes) -> float:
        """Return the expected cost of a client's next thing; 0 before any cost is known."""
        client = self._clients.get(name)
        return (client.mean if client else 0.0) or self._mean

    def push(self, name: bytes, thing: Thing, *, first: bool = False) -> None:
        """Add a waiting thing.

        Args:
            name: its client.
            thing: value that `pop` returns.
            first: True to put it before the client's other things.
        """
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(served=self._now)
        (client.waiting.appendleft if first else client.waiting.append)(thing)
        self._count += 1
        self._enlist(name, client)

    def pop(self, after: Collection[bytes] = ()) -> tuple[bytes, Thing] | None:
        """Take the oldest thing of the client whose turn it is; returns (client, thing), None if nothing may be taken.

        Args:
            after: clients that get a turn only if no other client waits.
        """
        if self.shut:
            return None
        passed: list[tuple[bytes, _Client[Thing]]] = []
        found = None
        while found is None and self._line:
            start, serial, name, client = heapq.heappop(self._line)
            if client.listed != serial:  # a stale entry
                continue
            client.listed = 0
            if self._clients.get(name) is not client or client.held or not client.waiting:
                continue
            if client.served > start:  # its share grew after it was listed
                self._enlist(name, client)
            elif name in after:
                passed.append((name, client))
            else:
                found = name, client
        if found is None and passed:
            found = passed.pop(0)
        for name, client in passed:
            self._enlist(name, client)
        return self._take(*found) if found else None

    def _take(self, name: bytes, client: _Client[Thing]) -> tuple[bytes, Thing]:
        self._now = max(self._now, client.served)
        charge = self.expected(name)
        client.served = self._now + charge
        client.charged.append(charge)
        self._count -= 1
        thing = client.waiting.popleft()
        self._enlist(name, client)
        return name, thing

    def _enlist(self, name: bytes, client: _Client[Thing]) -> None:
        start = max(self._now, client.served)
        if not client.waiting or client.held or (client.listed and start >= client.start):
            return
        self._serial += 1
        client.listed, client.start = self._serial, start
        heapq.heappush(self._line, (start, self._serial, name, client))
        if len(self._line) > 2 * len(self._clients) + _SPARE:
            self._line = [entry for entry in self._line if entry[3].listed == entry[1]]
            heapq.heapify(self._line)

    def spent(self, name: bytes, cost: float) -> None:
        """Account for a thing that was taken.

        Args:
            name: its client.
            cost: its cost, in one unit for all; 0 if it was not done after all.
        """
        client = self._clients.get(name)
        if client is None or not client.charged:
            return
        client.served += cost - client.charged.popleft()
        self._enlist(name, client)
        if cost > 0:
            client.mean += (_WEIGHT if client.mean else 1.0) * (cost - client.mean)
            self._mean += (_WEIGHT if self._mean else 1.0) * (cost - self._mean)

    def hold(self, name: bytes, held: bool) -> None:
        """Skip a client from now on, or no longer.

        Args:
            name: the client.
            held: True to skip it.
        """
        client = self._clients.get(name)
        if client is None:
            if not held:
                return
            client = self._clients[name] = _Client(served=self._now)
        client.held = held
        self._enlist(name, client)

    def take_all(self, but: Collection[bytes] = ()) -> list[Thing]:
        """Take all waiting things, client by client, free of cost.

        Args:
            but: clients whose things stay.
        """
        return [thing for name in list(self._clients) if name not in but for thing in self._emptied(name)]

    def drop(self, name: bytes) -> list[Thing]:
        """Forget a client and return its waiting things."""
        things = self._emptied(name)
        self._clients.pop(name, None)
        return things

    def _emptied(self, name: bytes) -> list[Thing]:
        client = self._clients.get(name)
        if client is None:
            return []
        things = list(client.waiting)
        self._count -= len(things)
        client.waiting.clear()
        return things
