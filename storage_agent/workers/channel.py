"""Messages of a few byte frames between the broker and one worker process, over a socket pair.

Not ZeroMQ: every message would wake up one of its threads at either end.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence

from sophon_loader.encodings.encoding import Payload

MAX_FRAMES = 5
_HEAD = struct.Struct(f"<{1 + MAX_FRAMES}Q")
"""The number of frames, and the size of each in bytes."""

_NO_MEMORY_S = 0.01
"""The pause after the kernel had no memory for a message."""
MAX_PAUSES = 1000
"""Of one message, at the end that waits: after ten seconds the host is beyond help, and the worker gives up."""
_MAX_AT_ONCE = 4 << 20
"""Bytes after which the end that never waits looks after others."""


class Channel:
    """One end of a socket pair; whether calls wait is the socket's own setting.

    Example:
        >>> ours, theirs = (Channel(end) for end in socket.socketpair())
        >>> ours.send([b"job", b"..."])
        >>> [bytes(frame) for frame in theirs.receive()]
        [b'job', b'...']
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._outbox: deque[memoryview] = deque()
        self._sizes: list[int] | None = None
        self._message = memoryview(bytearray(_HEAD.size))
        self._missing = self._message

    def fileno(self) -> int:
        """The descriptor to be polled; -1 once closed."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether something could not be sent yet, because the other end does not read; see `flush`."""
        return bool(self._outbox)

    def send(self, frames: Sequence[Payload]) -> None:
        """Send a message, or keep what the socket does not take.

        Args:
            frames: at most `MAX_FRAMES`.

        Raises:
            OSError: the other end is gone.
        """
        views = [memoryview(frame).cast("B") for frame in frames]
        sizes = [len(view) for view in views] + [0] * (MAX_FRAMES - len(views))
        self._outbox += [memoryview(_HEAD.pack(len(views), *sizes)), *views]
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as the socket takes it.

        When the kernel has no memory for a message, the end that never waits pauses once and keeps the rest: its poller
        will ask for it again, after everyone else had a turn.

        Raises:
            OSError: the other end is gone; or there is no memory for a long time, at the end that waits.
        """
        pauses = 0
        while self._outbox:
            try:
                sent = self._socket.sendmsg(list(self._outbox)[: 2 * MAX_FRAMES])
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

    def receive(self) -> list[memoryview] | None:
        """The next message; None when it is not here as a whole (or is large: then there is more to come at once).

        Raises:
            EOFError: the other end is closed.
            OSError: it is gone.
        """
        received = 0
        while True:
            if received > _MAX_AT_ONCE and not self._socket.getblocking():
                return None
            try:
                count = self._socket.recv_into(self._missing)
            except BlockingIOError:
                return None
            if not count:
                raise EOFError("the other end of the channel is closed")
            received += count
            self._missing = self._missing[count:]
            if self._missing:
                continue
            if self._sizes is None:
                number, *sizes = _HEAD.unpack(self._message)
                self._sizes = sizes[:number]
                self._message = memoryview(bytearray(sum(sizes)))
                self._missing = self._message
                if self._missing:
                    continue
            return self._taken(self._sizes)

    def _taken(self, sizes: list[int]) -> list[memoryview]:
        frames, start = [], 0
        for size in sizes:
            frames.append(self._message[start : start + size])
            start += size
        self._sizes = None
        self._message = memoryview(bytearray(_HEAD.size))
        self._missing = self._message
        return frames

    def close(self) -> None:
        """Close the socket; what was kept is lost."""
        self._socket.close()
