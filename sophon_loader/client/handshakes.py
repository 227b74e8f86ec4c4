"""Why an agent that listens lets no connection come about: what ZeroMQ tells of handshakes that failed."""

from __future__ import annotations

import socket

import zmq

from sophon_loader.client.address import Address
from sophon_loader.errors import AgentError, AgentUnreachable, KeyRefused
from sophon_loader.keys import file_of

FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""Events of a monitor."""
_MISMATCH = (int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL), int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH))
"""One end has keys and the other has none."""


_VERSION_3 = b"\xff" + bytes(8) + b"\x7f\x03"
"""The beginning of a greeting of ZMTP 3; whoever serves says the rest of its own as an answer, before it sees a key."""
_MECHANISM = slice(12, 32)
_LOOK_S = 0.5


class Handshakes:
    """The handshakes of a socket that failed.

    Args:
        address: where it connects to.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._failed: set[tuple[int, int]] = set()

    def failed(self, event: int, value: int) -> None:
        """One has.

        Args:
            event: of `FAILED`, as the socket's monitor has told it.
            value: what that says of it.
        """
        self._failed.add((event, value))

    def succeeded(self) -> None:
        """One has not, so those before were damaged on their way, or refused by an agent that was there before."""
        self._failed.clear()

    def error(self) -> AgentError | None:
        """Why connections failed; None if none has, so that nobody listens, or whoever does says nothing."""
        if not self._failed:
            return None
        endpoint, token = self._address.endpoint, self._address.token
        if token is None:
            file = file_of(self._address.keyed_as or endpoint) or "a file"
            remedy = (
                "copy a token of that agent (tokens/first below its keys, or one that `sophon-agent key add NAME` "
                f"makes) to {file} on this host, or give it as OffloadOptions(key=...)"
            )
            if _MISMATCH in self._failed or has_keys(endpoint):
                return KeyRefused(f"key must be given, because the agent at {endpoint} has keys, got none; {remedy}")
            return AgentUnreachable(
                f"an agent must answer at {endpoint}, got connections that are closed at once; something else listens "
                f"there, or nothing behind a proxy; if it stands for an agent that has keys, {remedy}"
            )
        if any(event == zmq.EVENT_HANDSHAKE_FAILED_AUTH for event, _ in self._failed):
            return KeyRefused(
                f"key must be one that the agent at {endpoint} knows, got {token.origin}, which was never added there "
                "or has been removed; `sophon-agent key list` there shows the keys that it knows"
            )
        return KeyRefused(
            f"key must belong to the agent at {endpoint}, got {token.origin}; either it belongs to another agent: then "
            "make a token there (`sophon-agent key add NAME`); or the agent serves without keys: then leave the key "
            "out, since with a key the loader never connects unencrypted"
        )


def has_keys(endpoint: str) -> bool:
    """Whether an agent that has keys listens there. One that hangs up may do so before ZeroMQ has read its greeting."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    greeting = b""
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _LOOK_S) as bare:
            bare.sendall(_VERSION_3)
            while len(greeting) < _MECHANISM.stop and (more := bare.recv(_MECHANISM.stop)):
                greeting += more
    except (OSError, ValueError):
        return False
    return greeting[_MECHANISM].rstrip(b"\0") == b"CURVE"
