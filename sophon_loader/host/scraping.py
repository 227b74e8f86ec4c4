"""A port for Prometheus: it answers `GET /metrics` and nothing else, once per connection.

Loader and agent both use it. A function makes each answer on request, so an unused port costs nothing. `http.server` is
not used. Its time-out begins again with each line, so that one client could hold it for ever. One thread serves a few
connections at once. Clients need no key here, and silent ones must not keep Prometheus waiting.
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
"""Seconds from the connection to the end of the answer, after which the port hangs up."""
MAX_HEAD_NBYTES = 16 << 10
"""Maximum size of a request. Prometheus sends about 300 bytes."""
MAX_CONNECTIONS = 16
"""Maximum number of open connections. One more, and the port closes the oldest."""
BACKLOG = 64
_CLOSE_S = 1.0
"""Seconds that `close` waits for the thread, which may be making a page."""
_PAUSE_S = 1.0
"""Seconds to wait after a connection could not be accepted, for example because descriptors ran out."""
_TEXT, _PAGE = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"


class ScrapePort:
    """Answers `GET /metrics` in its own thread until it is closed or the process ends.

    A forked process does not inherit the port.

    Args:
        host: address to listen on; IPv6 without brackets.
        port: number of the port to listen on.
        page: makes the answer, in that thread.

    Raises:
        OSError: it cannot listen, for example because the port is in use.

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
        """Open connections, oldest first."""
        _OPEN.add(self)
        self._thread = threading.Thread(target=self._serve, name="sophon-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and end the thread."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread; to close it does not
        self._thread.join(_CLOSE_S)
        self._socket.close()

    def forget(self) -> None:
        """In a forked process: close the parent's sockets, so that its port is free once the parent ends."""
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
        """Wait for descriptors that can be read or written; empty if the oldest connection's time runs out first."""
        poll = select.poll()  # no epoll: that is a descriptor, which forked processes would share
        poll.register(self._socket, select.POLLIN)
        for one in self._exchanges:
            poll.register(one.connection, select.POLLIN if one.left is None else select.POLLOUT)
        wait_s = self._exchanges[0].end_s - time.monotonic() if self._exchanges else None
        return {descriptor for descriptor, _ in poll.poll(None if wait_s is None else max(0.0, 1000 * wait_s) + 1)}

    def _take(self) -> None:
        """Accept one connection. Its request, if already there, is read before the next connection is accepted."""
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
        """Return status, content type and body of the answer to a request."""
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
    """Check that the package for Prometheus's format is installed.

    Args:
        what: the option that needs it, for the error message.

    Raises:
        ConfigError: the package is missing.
    """
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{what} must go with the package prometheus-client, got an environment without it; install it by "
            "`pip install 'sophon_loader[metrics]'`, or leave the option out"
        ) from error


def exposition(families: Callable[[], Iterable[Any]]) -> bytes:
    """Return metrics in Prometheus's text format.

    Args:
        families: makes metric families of prometheus_client.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(families))
    return generate_latest(registry)


class _Collector:
    """A collector for a registry. Without `describe` the registry would collect on registration."""

    def __init__(self, families: Callable[[], Iterable[Any]]) -> None:
        self.collect = families

    def describe(self) -> Iterable[Any]:
        return ()


@dataclass(eq=False)
class _Exchange:
    """Progress of one request and its answer.

    Args:
        connection: non-blocking.
        end_s: time at which the port hangs up.
        head: received part of the request, which ends with an empty line.
        left: unsent part of the answer; None before it is made.
    """

    connection: socket.socket
    end_s: float
    head: bytes = b""
    left: memoryview | None = None

    def advance(self, answer: Callable[[bytes], bytes]) -> bool:
        """Read or write as much as possible now; False once the exchange is finished.

        Args:
            answer: makes the answer to a complete request.
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
