"""Replies that ZeroMQ has received and clients have not. Pure: the time, and the kernel's numbers, are arguments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

STALLED_S = 2.0
"""Seconds that clients are watched, while too many replies are unread, before a client counts as not reading."""
READS_NBYTES_PER_S = 16_000
"""Minimum rate of a reading client on any wire: the rate at which a loader takes a message to be still arriving."""


@dataclass
class _Handed:
    """State of one client.

    Args:
        sizes: sizes of its newest replies; older ones cannot be with ZeroMQ any more.
        listed: sum of these sizes.
        unread: bytes of these replies that it has not taken, as far as known.
        total: bytes of all its replies.
        apart: bytes that it has acknowledged in addition to its replies: a handshake, signs of life.
        watched_s, taken: time of the last check whether it reads, and the bytes that it had taken by then.
        reads: result of that check.
    """

    sizes: deque[int]
    listed: int = 0
    unread: int = 0
    total: int = 0
    apart: int = 0
    watched_s: float | None = None
    taken: int = 0
    reads: bool = True


class UnreadReplies:
    """The replies of each client that ZeroMQ holds.

    Args:
        most: maximum number of one client's replies that ZeroMQ and the kernel can hold.

    Attributes:
        nbytes: bytes that all clients have not taken, as far as known.

    Example:
        >>> handed = UnreadReplies(most=64)
        >>> handed.put(b"loader", 1000)
        >>> handed.acknowledged(b"loader", 400)
        >>> handed.nbytes_of(b"loader")
        600
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[bytes, _Handed] = {}
        self.nbytes = 0

    @property
    def clients(self) -> list[bytes]:
        """Clients that have not taken all their replies, as far as known."""
        return [client for client, one in self._of.items() if one.unread]

    def put(self, client: bytes, nbytes: int) -> None:
        """Note that a reply was handed to ZeroMQ.

        Args:
            client: the receiver.
            nbytes: its size on the wire.
        """
        one = self._of.get(client)
        if one is None:
            one = self._of[client] = _Handed(deque(maxlen=self._most))
        gone = one.sizes[0] if len(one.sizes) == self._most else 0
        one.sizes.append(nbytes)
        one.total += nbytes
        one.listed += nbytes - gone
        self._set(one, min(one.unread + nbytes, one.listed))

    def nbytes_of(self, client: bytes) -> int:
        """Return the bytes that a client has not taken, as far as known."""
        one = self._of.get(client)
        return one.unread if one else 0

    def has_room(self, client: bytes, nbytes: int, most: int) -> bool:
        """True if another reply may be handed to ZeroMQ: the unread ones stay below `most`, or there are none.

        Args:
            client: the receiver.
            nbytes: of the reply.
            most: bytes.
        """
        unread = self.nbytes_of(client)
        return not unread or unread + nbytes <= most

    def acknowledged(self, client: bytes, nbytes: int) -> None:
        """Note the kernel's count of acknowledged bytes.

        Args:
            client: at the other end of a connection.
            nbytes: bytes that it has acknowledged since the connection was made.
        """
        one = self._of.get(client)
        if one is None:
            return
        unread = one.total - (nbytes - one.apart)
        if unread < 0:
            one.apart -= unread
        self._set(one, min(one.unread, max(0, unread)))

    def taken(self, client: bytes) -> None:
        """Note that a client has taken all its replies."""
        if (one := self._of.get(client)) is not None:
            self._set(one, 0)

    def drop(self, client: bytes) -> None:
        """Forget a client that has left, or has reconnected."""
        if (one := self._of.pop(client, None)) is not None:
            self.nbytes -= one.unread

    def not_reading(self, now_s: float) -> list[bytes]:
        """Return clients that have taken next to nothing for a while, those with most unread bytes first.

        To be called while too much is unread, right after the clients' acknowledgements were noted.
        """
        for one in self._of.values():
            taken = one.total - one.unread
            if not one.unread or one.watched_s is None:
                one.reads, one.watched_s, one.taken = True, now_s, taken
            elif now_s - one.watched_s >= STALLED_S:
                one.reads = taken - one.taken >= READS_NBYTES_PER_S * (now_s - one.watched_s)
                one.watched_s, one.taken = now_s, taken
        found = [(one.unread, client) for client, one in self._of.items() if not one.reads]
        return [client for _, client in sorted(found, reverse=True)]

    def _set(self, one: _Handed, unread: int) -> None:
        self.nbytes += unread - one.unread
        one.unread = unread
        if not unread:
            one.sizes.clear()
            one.listed = 0
