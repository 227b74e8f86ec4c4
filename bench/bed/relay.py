"""A relay that holds bytes back: a long way between two hosts, where the kernel cannot delay packets.

It takes TCP connections and passes them on; each byte leaves it half a round trip after it came. So the delay is exact,
and the same for any program. It lacks TCP's own trouble with latency. Both connections are short, so neither slow start
after a pause nor the kernel's limits on buffers (`net.ipv4.tcp_rmem`, `tcp_wmem`) can be seen.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

from bench.children import Orders

CHUNK_NBYTES = 1 << 18
"""Read at a time, at most."""
CONNECT_S = 10.0
END = b""
"""A chunk of no bytes: the end of a direction."""
Passing = Callable[[bytes], list[bytes]]
"""Makes of a chunk what is passed on."""


class Relay:
    """Listens on a free port of 127.0.0.1 until it is closed; for one thread, in a `with` statement.

    Args:
        target: address and port that connections are passed on to.
        round_trip_s: what it adds, s; half of it in each direction.
        mbit: of the fastest link that it shall not slow down, Mbit/s. What lies on such a link is held back, and no
            more: a relay that read on would hide that a link or a reader is slow.

    Attributes:
        port: where it listens.
        delay_s: how long a direction holds back what it reads, s; may be changed.

    Example:
        >>> with Relay(("127.0.0.1", 5555), round_trip_s=0.1, mbit=1000.0) as relay:
        ...     address = f"tcp://127.0.0.1:{relay.port}/photos"
    """

    def __init__(self, target: tuple[str, int], round_trip_s: float, mbit: float) -> None:
        self._target = target
        self.delay_s = round_trip_s / 2
        # A quarter more than lies on the link, for a writer that wakes up late.
        self._most_nbytes = int(1.25 * mbit * 1e6 / 8 * self.delay_s) + 2 * CHUNK_NBYTES
        self._lock = threading.Lock()
        self._open: set[_Connection] = set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:  # closed
                return
            try:
                far = self.connected()
            except OSError:
                with suppress(OSError):
                    near.shutdown(socket.SHUT_RDWR)  # a process that was forked meanwhile has a copy
                near.close()
                continue
            far.settimeout(None)
            connection = _Connection(near, far, self, self._most_nbytes)
            with self._lock:
                self._open = {one for one in self._open if not one.ended} | {connection}

    def connected(self) -> socket.socket:
        """A connection to the target, for a new one from this side.

        Raises:
            OSError: there is none.
        """
        return socket.create_connection(self._target, CONNECT_S)

    def passing(self, to_target: bool) -> Passing:
        """Return a function that turns a chunk read from a new connection into chunks to send; here it changes nothing.

        Args:
            to_target: True for the direction to the target.
        """
        return lambda chunk: [chunk]

    def cut(self) -> None:
        """Break all connections; new ones are taken."""
        with self._lock:
            for connection in self._open:
                connection.cut()

    def close(self) -> None:
        """Break all connections, and wait until every thread has ended."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()
        for connection in self._open:
            connection.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Connection:
    """Two sockets, and a direction from each to the other."""

    def __init__(self, near: socket.socket, far: socket.socket, relay: Relay, most_nbytes: int) -> None:
        self._sockets = (near, far)
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._directions = [
            _Direction(near, far, relay, relay.passing(to_target=True), most_nbytes),
            _Direction(far, near, relay, relay.passing(to_target=False), most_nbytes),
        ]
        self._threads = [
            threading.Thread(target=work, name="relay", daemon=True)
            for one in self._directions
            for work in (one.read, one.write)
        ]
        for thread in self._threads:
            thread.start()
        self._closer = threading.Thread(target=self._close_at_end, name="relay", daemon=True)
        self._closer.start()

    @property
    def ended(self) -> bool:
        return not self._closer.is_alive()

    def _close_at_end(self) -> None:
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def cut(self) -> None:
        for direction in self._directions:
            direction.end()

    def close(self) -> None:
        self.cut()
        self._closer.join()


class _Direction:
    """Writes the chunks read from one socket to the other, a fixed time later."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, relay: Relay, passing: Passing, most_nbytes: int
    ) -> None:
        self._source = source
        self._sink = sink
        self._relay = relay
        self._most_nbytes = most_nbytes
        self._pass = passing
        self._held: deque[tuple[float, bytes]] = deque()
        """Chunks, and when they are due."""
        self._held_nbytes = 0
        """Number of bytes in those chunks and in the one that is being written."""
        self._changed = threading.Condition()
        self._ended = False

    def read(self) -> None:
        chunks = [b"first"]
        while END not in chunks and not self._ended:
            try:
                data = self._source.recv(CHUNK_NBYTES)
            except OSError:
                data = END
            chunks = self._pass(data) if data else [END]
            due_s = time.monotonic() + self._relay.delay_s
            for chunk in chunks:
                with self._changed:
                    self._changed.wait_for(lambda: self._held_nbytes < self._most_nbytes or self._ended)
                    self._held.append((due_s, chunk))
                    self._held_nbytes += len(chunk)
                    self._changed.notify_all()

    def write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held or self._ended)
                if self._ended:
                    return
                due_s, data = self._held.popleft()
            time.sleep(max(0.0, due_s - time.monotonic()))
            try:
                if not data:
                    self._sink.shutdown(socket.SHUT_WR)
                    return
                self._sink.sendall(data)
            except OSError:
                self.end()
                return
            with self._changed:
                self._held_nbytes -= len(data)
                self._changed.notify_all()

    def end(self) -> None:
        """Give up what is held; wakes both threads."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for one in (self._source, self._sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def relaying(address: str, port: int, round_trip_s: float, mbit: float) -> Iterator[Orders]:
    """A relay in a process of its own, as in `bench/children.py`. Order: `port`, where it listens.

    Args:
        address: that connections are passed on to.
        port: of it.
        round_trip_s: what the relay adds, s.
        mbit: of the link, Mbit/s.
    """
    with Relay((address, port), round_trip_s, mbit) as relay:
        yield {"port": lambda _: relay.port}
