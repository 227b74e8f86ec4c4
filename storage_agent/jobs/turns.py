"""Whose turn it is, by what turns have cost. Pure: no sockets, no clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
_WEIGHT = 0.2
"""Of the newest cost in the running mean."""
_SPARE = 64
"""Entries of the line beyond two for each client: with more, those that go for nothing are taken out."""
NBYTES_PER_S = 125e6
"""A byte of a reply costs what it takes on a link of 1 Gbit/s: to pass it on takes the agent time, too, and it goes
where the replies of others have to go."""


@dataclass
class _Client(Generic[Thing]):
    """What one client has waiting, and what it has had.

    Args:
        waiting: its things, oldest first.
        served: the virtual time up to which it has had its share.
        mean: of what its things have cost lately; 0 before the first.
        charged: what was counted for each that has been taken and not been paid for.
        held: whether it has to wait for something other than its turn.
        listed: number of the entry by which it stands in line; 0 for none.
        start: of that entry.
    """

    waiting: deque[Thing] = field(default_factory=deque)
    served: float = 0.0
    mean: float = 0.0
    charged: deque[float] = field(default_factory=deque)
    held: bool = False
    listed: int = 0
    start: float = 0.0


class Turns(Generic[Thing]):
    """Things that wait, with turns by cost: whoever has had least of it lately is next (start-time fair queuing, Goyal
    et al. 1996, all of equal weight).

    What a thing costs is known when it is done; until then the client's mean counts, or everyone's before its first.
    What was counted too much is given back at once: who began with something dear does not wait long for the next.
    Who has waited for nothing does not save up: it begins where the others are.

    Attributes:
        shut: whether nobody's turn comes for now.

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
        """How many have something waiting."""
        return sum(bool(client.waiting) for client in self._clients.values())

    def waiting_of(self, name: bytes) -> int:
        """How many things of a client wait."""
        client = self._clients.get(name)
        return len(client.waiting) if client else 0

    def waiting(self, name: bytes) -> Sequence[Thing]:
        """What a client has waiting, oldest first."""
        client = self._clients.get(name)
        return tuple(client.waiting) if client else ()

    def expected(self, name: bytes) -> float:
        """What a thing of a client will probably cost; 0 while nothing is known."""
        client = self._clients.get(name)
        return (client.mean if client else 0.0) or self._mean

    def push(self, name: bytes, thing: Thing, *, first: bool = False) -> None:
        """Have a thing wait.

        Args:
            name: its client.
            thing: what `pop` gives back.
            first: before the client's others.
        """
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client(served=self._now)
        (client.waiting.appendleft if first else client.waiting.append)(thing)
        self._count += 1
        self._enlist(name, client)

    def pop(self, after: Collection[bytes] = ()) -> tuple[bytes, Thing] | None:
        """The next client, and the oldest of its things; None when there is none that may be taken.

        Args:
            after: clients whose turn comes only when nobody else is waiting.
        """
        if self.shut:
            return None
        passed: list[tuple[bytes, _Client[Thing]]] = []
        found = None
        while found is None and self._line:
            start, serial, name, client = heapq.heappop(self._line)
            if client.listed != serial:  # it stands elsewhere
                continue
            client.listed = 0
            if self._clients.get(name) is not client or client.held or not client.waiting:
                continue
            if client.served > start:  # it has had more since it was listed
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
        """What a thing that was taken has cost; 0 if it was not done after all.

        Args:
            name: its client.
            cost: in any unit, the same for all.
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
        """Pass a client over, or no longer.

        Args:
            name: the client.
            held: whether it is to be passed over.
        """
        client = self._clients.get(name)
        if client is None:
            if not held:
                return
            client = self._clients[name] = _Client(served=self._now)
        client.held = held
        self._enlist(name, client)

    def take_all(self, but: Collection[bytes] = ()) -> list[Thing]:
        """Take everything that waits, client by client, as if it cost nothing.

        Args:
            but: clients whose things stay.
        """
        return [thing for name in list(self._clients) if name not in but for thing in self._emptied(name)]

    def drop(self, name: bytes) -> list[Thing]:
        """Forget a client; what it had waiting."""
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
