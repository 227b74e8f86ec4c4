"""The descriptors of this process: how many connections they are enough for, and what the kernel knows of one."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import resource
import select
import socket
import termios

NONE_LEFT = (errno.EMFILE, errno.ENFILE)
"""Errors that pass, as connections are let go."""
MOST_CONNECTIONS = 16_384
"""However many descriptors there are: each takes some 40 KB of memory."""
RESERVE = 128
"""Descriptors for files, threads and sockets of the agent's own."""
RESERVE_PER_WORKER = 8
"""For its channel, its process, and the next one that is started in its place."""


def room_for_connections(workers: int) -> int:
    """How many connections this process has descriptors for, besides its own; takes as many as it may have.

    Args:
        workers: processes that run ops.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 1 << 20
    return min(MOST_CONNECTIONS, max(most // 4, most - RESERVE - RESERVE_PER_WORKER * workers))


class Incoming:
    """Which of many connections bytes have come by: polled like a socket, so that whoever waits for that can sleep.

    Example:
        >>> incoming = Incoming()
        >>> incoming.watch(descriptor)
        >>> incoming.take()
        []
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """The descriptor to be polled."""
        return self._epoll.fileno()

    def watch(self, descriptor: int) -> None:
        """Tell once when bytes wait to be read from a descriptor; nothing if it has been closed."""
        with contextlib.suppress(OSError):
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            except FileExistsError:
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def take(self) -> list[int]:
        """Descriptors by which bytes have come; each is to be watched anew."""
        return [descriptor for descriptor, _ in self._epoll.poll(0)]

    def close(self) -> None:
        """Close it."""
        self._epoll.close()


def unsent_nbytes(descriptor: int) -> int:
    """Bytes that the kernel has for the other end of a connection, not acknowledged yet; 0 if it is closed."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
    except OSError:
        return 0
    return found[0]


def hang_up(descriptor: int) -> None:
    """End a connection that ZeroMQ holds: it finds that the other end is gone, and closes the descriptor."""
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()


def peer_of(descriptor: int) -> str:
    """The other end of a connection, `host:port`; "?" where that cannot be told."""
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return "?"
    try:
        host, port, *_ = borrowed.getpeername()
    except (OSError, ValueError):  # it is gone; a Unix socket
        return "?"
    finally:
        borrowed.detach()
    return f"{host}:{port}"
