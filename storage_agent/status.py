"""`sophon-agent status`: ask a running agent and show its answer."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import zmq

from sophon_loader.endpoints import by_ipv6_alone, unknown_host
from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.keys import token_for
from sophon_loader.terminal import table
from sophon_loader.wire.frames import pack, unpack
from sophon_loader.wire.messages import AskStatus, Status
from storage_agent.status_table import rows_of
from storage_agent.this_host import token_here


def ask_status(address: str, timeout_s: float, key: str | None = None) -> dict[str, Any]:
    """The agent's numbers about itself.

    Args:
        address: `tcp://host:port`, with or without an export behind it.
        timeout_s: how long the agent may take to answer.
        key: see `keys.token_for`.

    Raises:
        AgentUnreachable: nobody answered within `timeout_s`.
        ConfigError: the key is none.
    """
    endpoint = "/".join(address.split("/")[:3]) if address.startswith("tcp://") else address
    token = token_for(endpoint, key)
    # Of this user's agents on this host: whether this one has keys shows in which of both questions is answered.
    own = token_here(endpoint) if token is None else None
    with zmq.Context() as context, contextlib.ExitStack() as sockets:
        poller = zmq.Poller()
        for one in (token,) if own is None else (token, own):
            socket = sockets.enter_context(context.socket(zmq.DEALER))
            poller.register(socket, zmq.POLLIN)
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IPV6, by_ipv6_alone(endpoint))
            if one is not None:
                socket.setsockopt(zmq.CURVE_SERVERKEY, one.server)
                socket.setsockopt(zmq.CURVE_PUBLICKEY, one.public)
                socket.setsockopt(zmq.CURVE_SECRETKEY, one.secret)
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as error:
                raise AgentUnreachable(f"address must be like tcp://host:5555, got {address!r}: {error}") from error
            socket.send(pack(AskStatus()))
        if not (answered := poller.poll(int(1000 * timeout_s))):
            if unknown := unknown_host(endpoint):
                raise AgentUnreachable(f"agent must be at a host that this one knows, got {unknown}; correct its name")
            raise AgentUnreachable(
                f"an agent must answer at {endpoint}, got nothing within {timeout_s:g} s; is `sophon-agent serve` "
                "running there, and bound to an address that this host reaches? An agent with keys answers only who "
                f"shows one: {'none' if token is None else token.origin} was shown; --key FILE names another"
            )
        answer = unpack(answered[0][0].recv_multipart()[0])
    if not isinstance(answer, Status):
        raise MalformedMessage(f"an agent must answer with its Status, got {answer}; is it of another version?")
    return answer.values


def show(address: str, *, as_json: bool, timeout_s: float, key: str | None = None) -> None:
    """Print the agent's status.

    Args:
        address: see `ask_status`.
        as_json: as JSON, instead of a table.
        timeout_s: how long the agent may take to answer.
        key: see `ask_status`.

    Raises:
        AgentUnreachable: nobody answered within that.
    """
    values = ask_status(address, timeout_s, key)
    if as_json:
        print(json.dumps(values, indent=2, sort_keys=True))
        return
    print(table(f"agent at {address}", rows_of(values)))
