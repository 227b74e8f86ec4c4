"""What threads of the broker's process have for its loop."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Notice = TypeVar("Notice")


class Notices(Generic[Notice]):
    """A queue that can be polled: `fileno()` is readable while something may wait in it.

    Any thread puts, one takes. Bytes that others write to `writer` (a signal's wake-up) only make it readable.

    Example:
        >>> notices: Notices[str] = Notices()
        >>> notices.put("a file has been read")
        >>> notices.take(64)
        ['a file has been read']
    """

    def __init__(self) -> None:
        self._queue: deque[Notice] = deque()
        self._told = False
        """Whether the reader's end has been made readable since it was last emptied."""
        self._reader, self.writer = socket.socketpair()
        for end in (self._reader, self.writer):
            end.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to be polled."""
        return self._reader.fileno()

    def put(self, notice: Notice) -> None:
        """Queue a notice."""
        self._queue.append(notice)
        if not self._told:  # else the taker has yet to look, and finds this one too
            self._told = True
            self._tell()

    def take(self, most: int) -> list[Notice]:
        """What waits, oldest first, but not more than `most`; the rest keeps it readable."""
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        self._told = False
        found = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        if self._queue:
            self._told = True
            self._tell()
        return found

    def _tell(self) -> None:
        with contextlib.suppress(OSError):  # full: it is readable already; or closed: nobody takes any more
            self.writer.send(b"\0")

    def close(self) -> None:
        """Close it, once no thread puts any more."""
        self._reader.close()
        self.writer.close()


@contextlib.contextmanager
def waking_on_signals(notices: Notices[Notice], stop: Callable[[], None]) -> Iterator[None]:
    """Within it, SIGTERM and SIGINT call `stop` and make `notices` readable, so that a poller sees them.

    Args:
        notices: of the loop that is to be woken.
        stop: called in the main thread, between any two steps of it.
    """
    before = {number: signal.signal(number, lambda *_: stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    wakeup = signal.set_wakeup_fd(notices.writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
