"""A port at which Prometheus reads numbers: `GET /metrics` and nothing else, one answer for each connection.

Both ends use it. What it answers is made by a function when somebody asks, so nothing is done while nobody does. It is
not `http.server`, because that waits for each line anew: one client could hold it for ever. One thread looks after a
few connections at once, because it asks for no key: clients that say nothing must not keep Prometheus waiting.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sophon_loader.errors import ConfigError

ANSWER_S = 5.0
"""How long one client may take, from the connection until it has its answer; then it is hung up on."""
MAX_HEAD_NBYTES = 16 << 10
"""Of a request; Prometheus sends some 300 bytes."""
MAX_CONNECTIONS = 16
"""Open at once; one more, and the oldest is hung up on."""
BACKLOG = 64
_CLOSE_S = 1.0
"""How long closing waits for the thread, which may be making a page."""
_PAUSE_S = 1.0
"""After a connection could not be taken, because descriptors are short for example."""
_TEXT, _PAGE = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class ScrapePort:
    """Answers `GET /metrics` in a thread of its own, until it is closed or the process ends.

    A process that is forked from this one does not have it.

    Args:
        host: where to listen; an address of IPv6 without brackets.
        port: likewise.
        page: makes the answer, in that thread.

    Raises:
        OSError: nothing can listen there, because the port is taken for example.

    Example:
        >>> ScrapePort("127.0.0.1", 9400, lambda: exposition(registry)).close()
    """

    def __init__(self, host: str, port: int, page: Callable[[], bytes]) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._socket.setblocking(False)
        self._page = page
        self._closed = threading.Event()
        self._exchanges: list[_Exchange] = []
        """Oldest first."""
        _OPEN.add(self)
        self._thread = threading.Thread(target=self._serve, name="sophon-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Listen no longer."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread; to close it does not
        self._thread.join(_CLOSE_S)
        self._socket.close()

    def forget(self) -> None:
        """In a forked process: let go of what is the parent's, so that its port is free once that has ended."""
        self._socket.close()
        for one in self._exchanges:
            one.connection.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            ready = self._ready()
            for one in list(self._exchanges):
                goes_on = one.advance(self._answer) if one.connection.fileno() in ready else True
                if not goes_on or time.monotonic() >= one.end_s:
                    self._hang_up(one)
            if self._socket.fileno() in ready and not self._closed.is_set():
                self._take()
        while self._exchanges:
            self._hang_up(self._exchanges[0])

    def _ready(self) -> set[int]:
        """Descriptors with something to do, once there are any; none once the oldest connection has had its time."""
        poll = select.poll()  # no epoll: that is a descriptor, which forked processes would share
        poll.register(self._socket, select.POLLIN)
        for one in self._exchanges:
            poll.register(one.connection, select.POLLIN if one.left is None else select.POLLOUT)
        wait_s = self._exchanges[0].end_s - time.monotonic() if self._exchanges else None
        return {descriptor for descriptor, _ in poll.poll(None if wait_s is None else max(0.0, 1000 * wait_s) + 1)}

    def _take(self) -> None:
        """Take one connection: what it has said already is looked at before the next one is taken."""
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            self._closed.wait(_PAUSE_S)
            return
        connection.setblocking(False)
        if len(self._exchanges) >= MAX_CONNECTIONS:
            self._hang_up(self._exchanges[0])
        self._exchanges.append(_Exchange(connection, time.monotonic() + ANSWER_S))

    def _hang_up(self, one: _Exchange) -> None:
        self._exchanges.remove(one)
        one.connection.close()

    def _answer(self, head: bytes) -> bytes:
        status, kind, body = self._answer_to(head)
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
        if status.startswith("405"):
            lines.append("Allow: GET")
        return "\r\n".join([*lines, "", ""]).encode() + body

    def _answer_to(self, head: bytes) -> tuple[str, str, bytes]:
        """Status, content type and body."""
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return "400 Bad Request", _TEXT, b"the request must be one of HTTP/1\n"
        if words[1].partition(b"?")[0] != b"/metrics":
            return "404 Not Found", _TEXT, b"there is /metrics alone\n"
        if words[0] != b"GET":
            return "405 Method Not Allowed", _TEXT, b"there is GET alone\n"
        try:
            return "200 OK", _PAGE, self._page()
        except Exception as error:  # the thread goes on
            return "503 Service Unavailable", _TEXT, f"{type(error).__name__}: {error}\n".encode()


def needs_prometheus(what: str) -> None:
    """See that the package is there that writes the answers.

    Args:
        what: was asked for, and needs it.

    Raises:
        ConfigError: it is not.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{what} must go with the package prometheus-client, got an environment without it; install it by "
            "`pip install 'sophon_loader[metrics]'`, or leave the option out"
        ) from error


def exposition(families: Callable[[], Iterable[Any]]) -> bytes:
    """What Prometheus reads.

    Args:
        families: makes those of prometheus_client.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    return generate_latest(registry)


class _Collector:
    """What a registry takes; it asks `describe` when a collector is registered, and would else collect."""

    def __init__(self, families: Callable[[], Iterable[Any]]) -> None:
        self.collect = families

    def describe(self) -> Iterable[Any]:
        return ()


@dataclass(eq=False)
class _Exchange:
    """A request and its answer, as far as they have come.

    Args:
        connection: does not block.
        end_s: when it is hung up on.
        head: the request, which ends with an empty line.
        left: of the answer; None before there is one.
    """

    connection: socket.socket
    end_s: float
    head: bytes = b""
    left: memoryview | None = None

    def advance(self, answer: Callable[[bytes], bytes]) -> bool:
        """Read or write what can be now; False once nothing more is to come.

        Args:
            answer: makes it, of a whole head.
        """
        try:
            if self.left is None:
                more = self.connection.recv(MAX_HEAD_NBYTES - len(self.head))
                self.head += more
                if b"\r\n\r\n" not in self.head:
                    return bool(more) and len(self.head) < MAX_HEAD_NBYTES
                self.left = memoryview(answer(self.head))
            self.left = self.left[self.connection.send(self.left) :]
            return bool(self.left)
        except BlockingIOError:
            return True
        except OSError:
            return False


_OPEN: weakref.WeakSet[ScrapePort] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_OPEN):
        one.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)
