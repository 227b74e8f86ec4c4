"""`sophon-agent status`: ask a running agent and show its answer."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.host.endpoints import Family, unknown_host
from sophon_loader.host.terminal import table
from sophon_loader.keys import Token, token_for
from sophon_loader.wire.frames import pack, unpack
from sophon_loader.wire.messages import AskStatus, Message, Status
from storage_agent.command.status_table import rows_of
from storage_agent.command.this_host import token_here, token_in

_LOOK_S = 0.1
"""Seconds between two checks if the host's other addresses are to be tried."""


def ask_status(address: str, timeout_s: float, key: str | None = None, keys: Path | None = None) -> dict[str, Any]:
    """Return the agent's numbers about itself.

    Args:
        address: `tcp://host:port`, with or without an export after it.
        timeout_s: time limit for the answer, in seconds.
        key: see `keys.token_for`.
        keys: the folder of keys that the agent serves with; a key out of it is shown.

    Raises:
        AgentUnreachable: no agent answered within `timeout_s`.
        ConfigError: the key is invalid, or the folder holds none.
    """
    endpoint = "/".join(address.split("/")[:3]) if address.startswith("tcp://") else address
    token = token_for(endpoint, key) if keys is None else token_in(keys)
    # An agent of this user on this host may have keys or none. It would count a question without a key as refused, so
    # that one comes second, and only to an agent that has none.
    own = token_here(endpoint) if token is None else None
    end_s = time.monotonic() + timeout_s
    with zmq.Context() as context:
        for one in (token,) if own is None else (own, None):
            try:
                answer = _answer(context, endpoint, one, end_s)
            except zmq.ZMQError as error:
                raise AgentUnreachable(f"address must be like tcp://host:5555, got {address!r}: {error}") from error
            if answer is not None:
                break
        else:
            raise _silent(endpoint, timeout_s, token or own, waited=time.monotonic() >= end_s)
    if not isinstance(answer, Status):
        raise MalformedMessage(f"an agent must answer with its Status, got {answer}; is it of another version?")
    return answer.values


def _answer(context: zmq.Context[Any], endpoint: str, token: Token | None, end_s: float) -> Message | None:
    """Return the agent's answer; None if none arrives until `end_s`, or only one of both ends has keys.

    Raises:
        ZMQError: the endpoint is invalid.
    """
    family = Family(endpoint)
    while time.monotonic() < end_s:
        with closing(_Question(context, endpoint, token, family)) as question:
            while not family.turned(time.monotonic()):
                if (wait_s := end_s - time.monotonic()) <= 0:
                    return None
                answer, mismatch = question.answer(min(wait_s, _LOOK_S))
                if answer is not None or mismatch:
                    return answer
    return None


class _Question:
    """A socket that has asked for the status.

    Args:
        context: of ZeroMQ.
        endpoint: of the agent.
        token: the key that is shown; None for none.
        family: address family by which the host is tried; notes if a connection is taken.

    Raises:
        ZMQError: the endpoint is invalid.
    """

    def __init__(self, context: zmq.Context[Any], endpoint: str, token: Token | None, family: Family) -> None:
        self._family = family
        self._connected = False
        self._socket = socket = context.socket(zmq.DEALER)
        events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_RETRIED
        self._monitor = socket.get_monitor_socket(events)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, family.by_ipv6)
            if token is not None:
                socket.setsockopt(zmq.CURVE_SERVERKEY, token.server)
                socket.setsockopt(zmq.CURVE_PUBLICKEY, token.public)
                socket.setsockopt(zmq.CURVE_SECRETKEY, token.secret)
            socket.connect(endpoint)
            socket.send(pack(AskStatus()))
        except BaseException:
            self.close()
            raise

    def answer(self, wait_s: float) -> tuple[Message | None, bool]:
        """Return (answer that arrived within `wait_s`, True if only one of both ends has keys)."""
        ready = dict(self._poller.poll(max(0, int(1000 * wait_s))))
        if self._socket in ready:
            return unpack(self._socket.recv_multipart()[0]), False
        if self._monitor not in ready:
            return None, False
        told = parse_monitor_message(self._monitor.recv_multipart())
        if told["event"] == zmq.EVENT_CONNECTED:
            self._connected = True
            self._family.connected()
        elif told["event"] == zmq.EVENT_CONNECT_RETRIED:
            if not self._connected:
                self._family.refused(time.monotonic())
        elif told["value"] == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return None, True
        return None, False

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()


def _silent(endpoint: str, timeout_s: float, shown: Token | None, *, waited: bool) -> AgentUnreachable:
    """Return the error for an agent that did not answer.

    Args:
        endpoint: of the agent.
        timeout_s: time limit for the answer, in seconds.
        shown: the key that it was shown.
        waited: True if that time has passed; else the handshake has shown that only one of both ends has keys.
    """
    if unknown := unknown_host(endpoint):
        return AgentUnreachable(f"agent must be at a host that this one knows, got {unknown}; correct its name")
    if shown is not None and not waited:
        return AgentUnreachable(f"key must be left out, because the agent at {endpoint} has none, got {shown.origin}")
    got = f"nothing within {timeout_s:g} s; is `sophon-agent serve` running there, and bound to an address that this "
    return AgentUnreachable(
        f"an agent must answer at {endpoint}, got {got + 'host reaches?' if waited else 'one that asks for a key.'} An "
        f"agent with keys answers only who shows one: {'none' if shown is None else shown.origin} was shown; --key "
        "FILE names another, --keys FOLDER the agent's own folder of keys"
    )


def show(address: str, *, as_json: bool, timeout_s: float, key: str | None = None, keys: Path | None = None) -> None:
    """Print the agent's status.

    Args:
        address: see `ask_status`.
        as_json: as JSON, instead of a table.
        timeout_s: time limit for the answer, in seconds.
        key, keys: see `ask_status`.

    Raises:
        AgentUnreachable: no agent answered within that.
    """
    values = ask_status(address, timeout_s, key, keys)
    if as_json:
        print(json.dumps(values, indent=2, sort_keys=True))
        return
    print(table(f"agent at {address}", rows_of(values)))
