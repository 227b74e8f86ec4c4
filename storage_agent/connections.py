"""Which connections there are, and which to let go. Pure: descriptors are numbers, the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

SILENT_S = 2.0
"""A connection that has said nothing for so long is the first to go when there are too many."""
IDLE_S = 60.0
"""Next is one that has said nothing lately; it connects again by itself when it has something to say."""
MAX_UNFINISHED_NBYTES = 32 << 20
"""Of one connection, since its last whole message: several times what the longest message has."""


@dataclass
class _Connection:
    """What is known of one: when it spoke last (or was made), whether it ever did, whose it is, whether it has spoken
    since the last look at its bytes, how many those were, and how many at the first look after it had spoken.
    """

    since_s: float
    spoke: bool = False
    client: bytes | None = None
    heard: bool = False
    nbytes: int = 0
    heard_nbytes: int = 0


class Connections:
    """The connections of a socket, by descriptor.

    Args:
        most: how many there may be.

    Example:
        >>> connections = Connections(most=1)
        >>> connections.accepted(7, now_s=0.0), connections.accepted(8, now_s=5.0)
        (None, None)
        >>> connections.too_many(now_s=5.0)
        [7]
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, _Connection] = {}
        self._at: dict[bytes, int] = {}
        """Client -> its descriptor."""

    def __len__(self) -> int:
        return len(self._open)

    def accepted(self, descriptor: int, now_s: float) -> None:
        """A connection has been made."""
        self._open[descriptor] = _Connection(now_s)

    def spoke(self, descriptor: int, now_s: float) -> None:
        """A whole message has come by a connection."""
        connection = self._open.setdefault(descriptor, _Connection(now_s))
        connection.since_s, connection.spoke, connection.heard = now_s, True, True

    def client(self, descriptor: int) -> bytes | None:
        """Whose a connection is; None before its first message."""
        connection = self._open.get(descriptor)
        return connection.client if connection else None

    def belongs(self, descriptor: int, client: bytes, now_s: float) -> None:
        """A connection is a client's; one that it had before is so no longer."""
        self._open.setdefault(descriptor, _Connection(now_s)).client = client
        self._at[client] = descriptor

    def descriptor(self, client: bytes) -> int | None:
        """The connection of a client."""
        return self._at.get(client)

    def closed(self, descriptor: int) -> bytes | None:
        """A connection has been closed: the client that has left with it, if it has not come back before."""
        connection = self._open.pop(descriptor, None)
        if connection is None or connection.client is None or self._at.get(connection.client) != descriptor:
            return None
        del self._at[connection.client]
        return connection.client

    def too_many(self, now_s: float) -> list[int]:
        """Connections to be let go, so that there are not too many: those that never spoke, the oldest first, then
        those that have long been idle, then the newest.
        """
        count = len(self._open) - self._most
        if count <= 0:
            return []
        oldest = sorted(self._open.items(), key=lambda item: (item[1].spoke, item[1].since_s))
        gone = [descriptor for descriptor, one in oldest if now_s - one.since_s >= (IDLE_S if one.spoke else SILENT_S)][
            :count
        ]
        newest = [descriptor for descriptor in reversed(self._open) if descriptor not in gone]
        return gone + newest[: count - len(gone)]

    def look(
        self, receiving: Iterable[int], received_nbytes: Callable[[int], int | None]
    ) -> tuple[list[int], list[int]]:
        """Look at some connections: which are to be let go because they send a message that has no end, and by which
        nothing has come since the last look.

        Args:
            receiving: their descriptors.
            received_nbytes: what has come by a descriptor in all; None where that cannot be told.
        """
        endless, quiet = [], []
        for descriptor in receiving:
            connection, nbytes = self._open.get(descriptor), received_nbytes(descriptor)
            if connection is None or nbytes is None or nbytes == connection.nbytes:
                quiet.append(descriptor)
                continue
            if connection.heard:
                connection.heard, connection.heard_nbytes = False, nbytes
            elif nbytes - connection.heard_nbytes > MAX_UNFINISHED_NBYTES:
                endless.append(descriptor)
            connection.nbytes = nbytes
        return endless, quiet
