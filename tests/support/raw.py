"""A peer that speaks ZMTP by hand, for what ZeroMQ's own sockets never send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_PROPERTIES = b"".join(
    bytes([len(name)]) + name + struct.pack(">I", len(value)) + value
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", b""))
)
_MORE, _LONG, _COMMAND = 1, 2, 4


class RawPeer:
    """A DEALER without keys, whose frames need never end.

    Args:
        address: `tcp://host:port`.

    Example:
        >>> with RawPeer(agent.endpoint) as peer:
        ...     peer.send(b"a frame", more=True)
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60.0)
        self.socket.sendall(_GREETING)
        self._receive(64)
        ready = b"\x05READY" + _PROPERTIES
        self.socket.sendall(bytes([_COMMAND, len(ready)]) + ready)
        _, nbytes = self._receive(2)
        self._receive(nbytes)

    def send(self, frame: bytes, *, more: bool) -> None:
        """Send a frame.

        Raises:
            OSError: the other end has hung up.
        """
        self.socket.sendall(struct.pack(">BQ", _LONG | (_MORE if more else 0), len(frame)) + frame)

    def _receive(self, nbytes: int) -> bytes:
        got = b""
        while len(got) < nbytes:
            part = self.socket.recv(nbytes - len(got))
            assert part, "the other end must not hang up in the handshake"
            got += part
        return got

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
