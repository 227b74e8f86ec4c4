"""Messages of a few byte frames between the broker and one worker process, over a socket pair.

Not ZeroMQ: every message would wake up one of its threads at either end.
"""

from __future__ import annotations

import errno
import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

from sophon_loader.encodings.encoding import Payload

MAX_FRAMES = 5
_HEAD = struct.Struct(f"<{1 + MAX_FRAMES}Q")
"""Number of frames, and the size of each in bytes."""

_NO_MEMORY_S = 0.01
"""Pause after the kernel had no memory for a message, s."""
MAX_PAUSES = 1000
"""Maximum number of pauses for one message, at the blocking end. After ten seconds the host is beyond help, and the
worker gives up."""
_ROOM = 1 << 16
"""Bytes received by one call; a message of small frames takes one call."""
_MAX_AT_ONCE = 4 << 20
"""Bytes after which the non-blocking end serves other channels first."""
_MAX_VIEWS = 16 * (1 + MAX_FRAMES)
"""Maximum number of frames sent by one call; the kernel takes 1024."""


class Channel:
    """One end of a socket pair. Calls block if the socket does.

    Example:
        >>> ours, theirs = (Channel(end) for end in socket.socketpair())
        >>> ours.send([b"job", b"..."])
        >>> [bytes(frame) for frame in theirs.receive()]
        [b'job', b'...']
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._outbox: deque[memoryview] = deque()
        self._room = memoryview(bytearray(_ROOM))
        self._unread = self._room[:0]
        """Bytes received after the part that was missing."""
        self._was_all = False
        """True if the last call received less than there was room for."""
        self._begin()

    def _begin(self) -> None:
        self._sizes: list[int] | None = None
        self._missing = self._message = memoryview(bytearray(_HEAD.size))

    def fileno(self) -> int:
        """Return the descriptor to be polled; -1 once closed."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """True if frames are unsent: they were only `put`, or the other end does not read; see `flush`."""
        return bool(self._outbox)

    @property
    def drained(self) -> bool:
        """True if the last call left nothing to receive, which saves another call. The poller reports new data."""
        return self._was_all and not self._unread

    def send(self, frames: Sequence[Payload]) -> None:
        """Send a message; frames that the socket does not accept yet are queued.

        Args:
            frames: at most `MAX_FRAMES`.

        Raises:
            OSError: the other end is gone.
        """
        self.put(frames)
        self.flush()

    def put(self, frames: Sequence[Payload]) -> None:
        """Queue a message for the next `flush`. Several queued messages go out by one call, and wake the other end
        once.

        Args:
            frames: at most `MAX_FRAMES`.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        sizes = [len(view) for view in views] + [0] * (MAX_FRAMES - len(views))
        self._outbox += [memoryview(_HEAD.pack(len(views), *sizes)), *views]

    def flush(self) -> None:
        """Send queued frames, as far as the socket accepts them.

        If the kernel has no memory for a message, the non-blocking end pauses once and keeps the rest queued. Its
        poller asks for it again after all other channels had a turn.

        Raises:
            OSError: the other end is gone; or, at the blocking end, memory was short for a long time.
        """
        pauses = 0
        while self._outbox:
            try:
                sent = self._socket.sendmsg(list(itertools.islice(self._outbox, _MAX_VIEWS)))
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.ENOBUFS, errno.ENOMEM) or pauses == MAX_PAUSES:
                    raise
                pauses += 1
                time.sleep(_NO_MEMORY_S)
                if not self._socket.getblocking():
                    return
                continue
            while self._outbox and sent >= len(self._outbox[0]):
                sent -= len(self._outbox.popleft())
            if sent:
                self._outbox[0] = self._outbox[0][sent:]

    def at_hand(self) -> list[memoryview] | None:
        """Return the next message if it was received together with the last one, without a system call."""
        return self._whole() if self._unread else None

    def receive(self) -> list[memoryview] | None:
        """Return the next message; None if it has not fully arrived. A large message may need further calls at once.

        Raises:
            EOFError: the other end is closed.
            OSError: the other end is gone.
        """
        received = 0
        while (message := self._whole()) is None:
            if received > _MAX_AT_ONCE and not self._socket.getblocking():
                return None
            try:
                count = self._read()
            except BlockingIOError:
                return None
            if not count:
                raise EOFError("the other end of the channel is closed")
            received += count
        return message

    def _read(self) -> int:
        """Receive available bytes; returns their number."""
        if len(self._missing) >= _ROOM:
            count = self._socket.recv_into(self._missing)
            self._missing, self._was_all = self._missing[count:], False
            return count
        count = self._socket.recv_into(self._room)
        self._unread, self._was_all = self._room[:count], count < _ROOM
        return count

    def _whole(self) -> list[memoryview] | None:
        """Return the next message if all of it was received."""
        while True:
            count = min(len(self._missing), len(self._unread))
            self._missing[:count] = self._unread[:count]
            self._missing, self._unread = self._missing[count:], self._unread[count:]
            if self._missing:
                return None
            if self._sizes is not None:
                break
            number, *sizes = _HEAD.unpack(self._message)
            self._sizes = sizes[:number]
            self._missing = self._message = memoryview(bytearray(sum(sizes)))
        frames, start = [], 0
        for size in self._sizes:
            frames.append(self._message[start : start + size])
            start += size
        self._begin()
        return frames

    def close(self) -> None:
        """Close the socket; queued frames are lost."""
        self._socket.close()
