"""The descriptors of this process: their limit on connections, and the kernel's data on each connection."""

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
"""Errors that pass when connections are closed."""
MOST_CONNECTIONS = 16_384
"""Maximum number of connections, for any number of descriptors: each takes some 40 KB of memory."""
RESERVE = 128
"""Descriptors for the agent's own files, threads and sockets."""
RESERVE_PER_WORKER = 8
"""Descriptors for a worker: its channel, its process, and the worker that replaces it."""


def room_for_connections(workers: int) -> int:
    """Return the number of connections that this process has descriptors for; raises its limit as far as allowed.

    Args:
        workers: number of worker processes, with op workers.
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
    """Reports which of many connections have received bytes. It can be polled like a socket, so that a waiting thread
    sleeps.

    Example:
        >>> incoming = Incoming()
        >>> incoming.watch(descriptor)
        >>> incoming.take()
        []
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def fileno(self) -> int:
        """Return the descriptor to be polled."""
        return self._epoll.fileno()

    def watch(self, descriptor: int) -> None:
        """Report once when a descriptor has bytes to read; does nothing if it is closed."""
        with contextlib.suppress(OSError):
            try:
                self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLONESHOT)
            except FileExistsError:
                self._epoll.modify(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def take(self) -> list[int]:
        """Return descriptors that have received bytes; each has to be watched again."""
        return [descriptor for descriptor, _ in self._epoll.poll(0)]

    def close(self) -> None:
        """Close the descriptor that is polled."""
        self._epoll.close()


def unsent_nbytes(descriptor: int) -> int:
    """Return the bytes of a connection that the other end has not acknowledged yet; 0 if it is closed."""
    found = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.TIOCOUTQ, found)
    except OSError:
        return 0
    return found[0]


def hang_up(descriptor: int) -> None:
    """End a connection that ZeroMQ holds: it notices that the other end is gone, and closes the descriptor."""
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=descriptor)
        try:
            borrowed.shutdown(socket.SHUT_RDWR)
        finally:
            borrowed.detach()


def peer_of(descriptor: int) -> str:
    """Return the other end of a connection as `host:port`; "?" if not known."""
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
