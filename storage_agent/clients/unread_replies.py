"""Replies that ZeroMQ has been given and clients have not taken. Pure: the time, and what the kernel says, come in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

STALLED_S = 2.0
"""How long clients are watched, once unread replies come to too much, before one counts as not reading."""
READS_NBYTES_PER_S = 16_000
"""What one that reads takes at least, however slow its wire is: what a loader takes for a message that comes."""


@dataclass
class _Handed:
    """Of one client.

    Args:
        sizes: of its latest replies: no others can still be with ZeroMQ.
        listed: all these together.
        unread: of these, bytes that it has not taken, as far as is known.
        total: bytes of all its replies.
        apart: bytes by which it has acknowledged more than its replies had: a handshake, signs of life.
        watched_s, taken: when it was last seen whether it reads, and what it had taken by then.
        reads: whether it did.
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
    """What ZeroMQ has of the replies of each client.

    Args:
        most: replies of one client that ZeroMQ, and the kernel behind it, can have.

    Attributes:
        nbytes: that all clients have not taken, as far as is known.

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
        """Those that have not taken everything, as far as is known."""
        return [client for client, one in self._of.items() if one.unread]

    def put(self, client: bytes, nbytes: int) -> None:
        """A reply has been handed to ZeroMQ.

        Args:
            client: whose it is.
            nbytes: that it has on the wire.
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
        """Bytes that a client has not taken, as far as is known."""
        one = self._of.get(client)
        return one.unread if one else 0

    def has_room(self, client: bytes, nbytes: int, most: int) -> bool:
        """Whether a client may be handed another reply: as many as come to `most`, or one.

        Args:
            client: whose it is.
            nbytes: of the reply.
            most: bytes.
        """
        unread = self.nbytes_of(client)
        return not unread or unread + nbytes <= most

    def acknowledged(self, client: bytes, nbytes: int) -> None:
        """What the kernel knows.

        Args:
            client: of a connection.
            nbytes: that its other end has acknowledged since it was made.
        """
        one = self._of.get(client)
        if one is None:
            return
        unread = one.total - (nbytes - one.apart)
        if unread < 0:
            one.apart -= unread
        self._set(one, min(one.unread, max(0, unread)))

    def taken(self, client: bytes) -> None:
        """A client has taken everything."""
        if (one := self._of.get(client)) is not None:
            self._set(one, 0)

    def drop(self, client: bytes) -> None:
        """A client has left, or come back by another connection."""
        if (one := self._of.pop(client, None)) is not None:
            self.nbytes -= one.unread

    def not_reading(self, now_s: float) -> list[bytes]:
        """Clients that have taken next to nothing for a while, those with most first; to be asked while too much is
        unread, right after it was seen what they have taken.
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
