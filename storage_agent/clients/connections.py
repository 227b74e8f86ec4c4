"""The open connections, and which of them to close. Pure: descriptors are numbers, the time is an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

SILENT_S = 2.0
"""Seconds after which a connection that never sent a message may be closed, if there are too many; these go first."""
IDLE_S = 60.0
"""Seconds without a message after which a connection is next to be closed. It reconnects when it has something to
send."""
MAX_UNREAD_NBYTES = 32 << 20
"""Maximum bytes of one connection that arrived and are not in a message that was read: several times the longest
message."""
MAX_ALL_UNREAD_NBYTES = 512 << 20
"""Maximum unread bytes of all connections. Above it, the connections with most of them are closed first."""
FEW_UNREAD_NBYTES = 16 << 10
"""Unread bytes that may be a handshake, or signs of life."""
UNFINISHED_S = 60.0
"""Seconds that more unread bytes may wait for the rest of their message: 4 MiB over a wire of 0.6 Mbit/s."""


@dataclass
class _Connection:
    """State of one connection.

    Args:
        since_s: time of its last message, or of its start.
        spoke: True once it has sent a message.
        client: the client it belongs to.
        nbytes: bytes that had arrived at the last look.
        read_nbytes: bytes of messages that were read.
        unfinished_s: time at which more than few unread bytes were first seen since its last message; None if they were
            not.
    """

    since_s: float
    spoke: bool = False
    client: bytes | None = None
    nbytes: int = 0
    read_nbytes: int = 0
    unfinished_s: float | None = None

    @property
    def unread_nbytes(self) -> int:
        """Bytes that arrived and were not read, by the last look."""
        return max(0, self.nbytes - self.read_nbytes)


class Connections:
    """The connections of a socket, by descriptor.

    Args:
        most: maximum number of connections.

    Attributes:
        unread_nbytes: bytes of all connections that arrived and are not in a message that was read, by the last look.

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
        """Note a new connection.

        Args:
            descriptor: of the connection.
            now_s: the time.
        """
        self._open[descriptor] = _Connection(now_s)

    def spoke(self, descriptor: int, now_s: float, nbytes: int) -> None:
        """Note that a whole message was read from a connection.

        Args:
            descriptor: of the connection.
            now_s: the time.
            nbytes: size of the message on the wire.
        """
        connection = self._open.setdefault(descriptor, _Connection(now_s))
        before = connection.unread_nbytes
        connection.since_s, connection.spoke, connection.unfinished_s = now_s, True, None
        connection.read_nbytes += nbytes
        self.unread_nbytes += connection.unread_nbytes - before

    def client(self, descriptor: int) -> bytes | None:
        """Return the client of a connection; None before its first message."""
        connection = self._open.get(descriptor)
        return connection.client if connection else None

    def belongs(self, descriptor: int, client: bytes, now_s: float) -> None:
        """Assign a connection to a client, in place of the client's earlier one.

        Args:
            descriptor: of the connection.
            client: the client.
            now_s: the time.
        """
        self._open.setdefault(descriptor, _Connection(now_s)).client = client
        self._at[client] = descriptor

    def descriptor(self, client: bytes) -> int | None:
        """Return the descriptor of a client's connection; None without one."""
        return self._at.get(client)

    def closed(self, descriptor: int) -> bytes | None:
        """Note that a connection was closed. Returns the client that has left with it; None if the client has
        reconnected before."""
        connection = self._open.pop(descriptor, None)
        self.unread_nbytes -= 0 if connection is None else connection.unread_nbytes
        if connection is None or connection.client is None or self._at.get(connection.client) != descriptor:
            return None
        del self._at[connection.client]
        return connection.client

    def too_many(self, now_s: float) -> list[int]:
        """Return connections to close, so that there are not too many.

        First come those that never sent a message, the oldest first, then those that have long been idle, then the
        newest.
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
        """Check connections for messages without an end.

        Args:
            receiving: descriptors of the connections.
            received_nbytes: returns the bytes that a descriptor has received in total; None if not known.
            now_s: the time.

        Returns:
            The connections to close, with the reason, and those that have received nothing since the last look. The
                latter need no look until more arrives.
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
        """Return connections to close, with the reason, so that the others' unread bytes are not too many."""
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
