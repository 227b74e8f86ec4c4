"""Which connections there are, and which to let go. Pure: descriptors are numbers, the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

SILENT_S = 2.0
"""A connection that has said nothing for so long is the first to go when there are too many."""
IDLE_S = 60.0
"""Next is one that has said nothing lately; it connects again by itself when it has something to say."""
MAX_UNREAD_NBYTES = 32 << 20
"""Bytes of one connection that have come and are not in a message that was read: several times the longest message."""
MAX_ALL_UNREAD_NBYTES = 512 << 20
"""The same of all connections: those with most of them are let go first."""
FEW_UNREAD_NBYTES = 16 << 10
"""Up to so many may be a handshake, or signs of life."""
UNFINISHED_S = 60.0
"""How long more of them may wait for the rest of their message: 4 MiB over a wire of 0.6 Mbit/s."""


@dataclass
class _Connection:
    """What is known of one.

    Args:
        since_s: when it spoke last, or was made.
        spoke: whether it ever did.
        client: whose it is.
        nbytes: that had come by it at the last look.
        read_nbytes: of messages that were read.
        unfinished_s: when more than few bytes were first seen since its last message; None where none were.
    """

    since_s: float
    spoke: bool = False
    client: bytes | None = None
    nbytes: int = 0
    read_nbytes: int = 0
    unfinished_s: float | None = None

    @property
    def unread_nbytes(self) -> int:
        """What has come and was not read, as far as is known since the last look."""
        return max(0, self.nbytes - self.read_nbytes)


class Connections:
    """The connections of a socket, by descriptor.

    Args:
        most: how many there may be.

    Attributes:
        unread_nbytes: that have come by all of them and are not in a message that was read, at the last look.

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
        self.unread_nbytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def accepted(self, descriptor: int, now_s: float) -> None:
        """A connection has been made."""
        self._open[descriptor] = _Connection(now_s)

    def spoke(self, descriptor: int, now_s: float, nbytes: int) -> None:
        """A whole message has been read from a connection.

        Args:
            descriptor: of the connection.
            now_s: the time.
            nbytes: that the message had on the wire.
        """
        connection = self._open.setdefault(descriptor, _Connection(now_s))
        before = connection.unread_nbytes
        connection.since_s, connection.spoke, connection.unfinished_s = now_s, True, None
        connection.read_nbytes += nbytes
        self.unread_nbytes += connection.unread_nbytes - before

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
        self.unread_nbytes -= 0 if connection is None else connection.unread_nbytes
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
        self, receiving: Iterable[int], received_nbytes: Callable[[int], int | None], now_s: float
    ) -> tuple[dict[int, str], list[int]]:
        """Look at some connections.

        Args:
            receiving: their descriptors.
            received_nbytes: what has come by a descriptor in all; None where that cannot be told.
            now_s: the time.

        Returns:
            Those to be let go, with the reason, and those by which nothing has come since the last look, so that they
            need not be looked at until more does.
        """
        endless: dict[int, str] = {}
        quiet = []
        for descriptor in receiving:
            connection, nbytes = self._open.get(descriptor), received_nbytes(descriptor)
            if connection is None or nbytes is None:
                quiet.append(descriptor)
                continue
            before, came = connection.unread_nbytes, nbytes != connection.nbytes
            connection.nbytes = nbytes
            unread = connection.unread_nbytes
            self.unread_nbytes += unread - before
            if unread <= FEW_UNREAD_NBYTES:
                connection.unfinished_s = None
                if not came:
                    quiet.append(descriptor)
            elif connection.unfinished_s is None:
                connection.unfinished_s = now_s
            elif now_s - connection.unfinished_s > UNFINISHED_S:
                endless[descriptor] = f"its message was not whole within {UNFINISHED_S:g} s"
            if unread > MAX_UNREAD_NBYTES:
                endless[descriptor] = f"more than {MAX_UNREAD_NBYTES >> 20} MiB without the end of a message"
        return endless | self._too_much_in_all(endless), quiet

    def _too_much_in_all(self, gone: Collection[int]) -> dict[int, str]:
        """Connections to be let go so that the unread bytes of the others are not too many, with the reason."""
        left = self.unread_nbytes - sum(self._open[descriptor].unread_nbytes for descriptor in gone)
        if left <= MAX_ALL_UNREAD_NBYTES:
            return {}
        reason = f"unread messages exceed {MAX_ALL_UNREAD_NBYTES >> 20} MiB, and it has sent most of them"
        found: dict[int, str] = {}
        for descriptor, one in sorted(self._open.items(), key=lambda item: -item[1].unread_nbytes):
            if left <= MAX_ALL_UNREAD_NBYTES:
                break
            if descriptor not in gone:
                found[descriptor] = reason
                left -= one.unread_nbytes
        return found
