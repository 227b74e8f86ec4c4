"""A port at which Prometheus reads numbers: `GET /metrics` and nothing else, one connection at a time.

Both ends use it. What it answers is made by a function when somebody asks, so nothing is done while nobody does. It is
not `http.server`, because that waits for each line anew: one client could hold it for ever.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from sophon_loader.errors import ConfigError

ANSWER_S = 5.0
"""How long one client may take, from the connection until it has its answer; then it is hung up on."""
MAX_HEAD_NBYTES = 16 << 10
"""Of a request; Prometheus sends some 300 bytes."""
BACKLOG = 8
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
        self._page = page
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        _OPEN.add(self)
        threading.Thread(target=self._serve, name="sophon-metrics", daemon=True).start()

    def close(self) -> None:
        """Listen no longer."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread; to close it does not
        self._socket.close()

    def forget(self) -> None:
        """In a forked process: let go of what is the parent's, so that its port is free once that has ended."""
        self._socket.close()
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        while not self._closed.is_set():
            try:
                self._connection, _ = self._socket.accept()
            except OSError:
                self._closed.wait(_PAUSE_S)
                continue
            with self._connection, contextlib.suppress(OSError):
                self._answer(self._connection, time.monotonic() + ANSWER_S)
            self._connection = None

    def _answer(self, connection: socket.socket, end_s: float) -> None:
        head = _head_of(connection, end_s)
        if head is None:
            return
        status, kind, body = self._answer_to(head)
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
        if status.startswith("405"):
            lines.append("Allow: GET")
        connection.settimeout(_left_s(end_s))  # of `sendall` as a whole
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)

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


def _head_of(connection: socket.socket, end_s: float) -> bytes | None:
    """A request as far as its empty line; None if it does not come in time, or is too long."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) >= MAX_HEAD_NBYTES:
            return None
        connection.settimeout(_left_s(end_s))
        more = connection.recv(MAX_HEAD_NBYTES - len(head))
        if not more:
            return None
        head += more
    return head


def _left_s(end_s: float) -> float:
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


_OPEN: weakref.WeakSet[ScrapePort] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_OPEN):
        one.forget()
    _OPEN.clear()


os.register_at_fork(after_in_child=_after_fork)
