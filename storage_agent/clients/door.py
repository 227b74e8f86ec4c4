"""Decides which clients are let in, by their keys, and which exports they may see: the agent's end of ZeroMQ's
CURVE."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import zmq

from storage_agent.clients.key_files import Grant, Guests, KeyFolder
from storage_agent.host.log import EventLog

_ENDPOINT = "inproc://zeromq.zap.01"
"""Address at which ZeroMQ asks about clients, rfc.zeromq.org/spec/27."""
_DOMAIN = b"sophon"
"""Domain of the sockets. With one, ZeroMQ lets no client in that was not approved."""
_MAX_PER_TURN = 64
_NOBLOCK = int(zmq.NOBLOCK)


class Door:
    """Answers ZeroMQ's questions about clients that have shown their key; used by the thread that owns the sockets.

    pyzmq's own `zmq.auth` does that in a separate thread with an asyncio loop. Here the broker has a loop already. It
    also has to look keys up for each message, so that a removed key ends at once.

    Args:
        folder: folder of the agent's key and of the keys that are let in.
        log: for refused clients.

    Raises:
        ConfigError: the folder cannot be used.

    Attributes:
        socket: has something to read when `answer` should be called.
        refused: number of refused clients.
    """

    def __init__(self, folder: Path, log: EventLog) -> None:
        keys = KeyFolder(folder)
        self._secret = keys.own().secret
        self._guests = Guests(keys, log)
        self._log = log
        self._told: Counter[str] = Counter()
        """Number of open connections, by host, whose keys were refused."""
        self.refused = 0
        self.socket: zmq.Socket[bytes]

    def guard(self, socket: zmq.Socket[bytes]) -> None:
        """Let a socket accept only clients with a key; to be called before it is bound."""
        self.socket = socket.context.socket(zmq.REP)
        self.socket.bind(_ENDPOINT)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)

    def answer(self) -> None:
        """Answer ZeroMQ's waiting questions: is this client let in?"""
        for _ in range(_MAX_PER_TURN):
            try:
                version, request, _, address, _, mechanism, *credentials = self.socket.recv_multipart(_NOBLOCK)
            except zmq.Again:
                return
            public = credentials[0].hex() if mechanism == b"CURVE" and len(credentials) == 1 else ""
            if self._guests.grant(public, newcomer=True) is not None:
                self.socket.send_multipart([version, request, b"200", b"", public.encode(), b""])
            else:
                self.socket.send_multipart([version, request, b"400", b"this key is not let in", b"", b""])
                peer = address.decode(errors="replace")
                self.refused += 1
                self._told[peer] += 1
                self._log.warning("key refused", address=peer, key=public, reason="this key is not let in")

    def left(self, peer: str) -> None:
        """Note that a client has left without a message. ZeroMQ does not ask about clients without a key for this
        agent.

        Args:
            peer: its `host:port`.
        """
        host = peer.rpartition(":")[0]
        if self._told[host] > 0:
            self._told[host] -= 1
            return
        del self._told[host]
        self.refused += 1
        reason = "no key was shown, or one made for another agent; or this is no loader"
        self._log.warning("key refused", address=peer, reason=reason)

    def grant(self, public: str) -> Grant | None:
        """Return a client's current permissions; None if it is not let in.

        Args:
            public: its key in hexadecimal digits: the `User-Id` of its messages.
        """
        return self._guests.grant(public)
