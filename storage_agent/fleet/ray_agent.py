"""The actor that keeps an agent on a node of a Ray cluster, and its start.

The agent is a child process of its actor, so that nothing of it runs among Ray's threads, and ends with it.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sophon_loader.errors import AgentError, ConfigError, SophonError
from sophon_loader.wire.actor import actor_text
from sophon_loader.wire.announcement import announced
from storage_agent.host.checks import check_address

NAMESPACE = "sophon"
END_S = 20.0
"""Time limit for a stopped agent's last requests, in seconds."""
_PROGRAM = Path(__file__).parents[1] / "pinned.py"
_AGAIN_S = 5.0
"""Seconds until an agent that did not start is tried again: a folder may not be mounted yet."""


class SophonAgent:
    """The actor. Ray restarts only actors whose process has died, so every error ends the process.

    Args:
        arguments: of `sophon-agent serve`, without an address.
        interface: the network interface whose address is taken; "" for the node's address in Ray.
        ports: (first, last) port of the range from which it takes a free one; None for any port.
    """

    def __init__(self, arguments: Sequence[str], interface: str, ports: tuple[int, int] | None) -> None:
        self._ending = False
        try:
            command = [sys.executable, str(_PROGRAM), "serve", *arguments]
            bind = free_address(host_at(interface), ports)
            self._agent = subprocess.Popen(  # in the group of Ray's worker, which Ray ends as a whole
                [*command, "--bind", bind, "--end-with-stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            )
            said = announced(self._agent)
        except (SophonError, OSError) as error:
            print(f"sophon-agent ray: {error}; tried again in {_AGAIN_S:g} s", file=sys.stderr, flush=True)
            time.sleep(_AGAIN_S)
            os._exit(1)
        self._said = actor_text(said.endpoint, said.exports)
        threading.Thread(target=self._end_with_agent, name="watch-agent", daemon=True).start()

    def __repr__(self) -> str:
        return self._said

    def end(self) -> None:
        """Have the agent answer its last requests; then it and this actor end for good."""
        import ray

        self._ending = True
        self._agent.terminate()
        try:
            self._agent.wait(END_S)
        except subprocess.TimeoutExpired:
            self._agent.kill()
        ray.actor.exit_actor()

    def _end_with_agent(self) -> None:
        self._agent.wait()
        if not self._ending:
            os._exit(1)


def free_address(host: str, ports: tuple[int, int] | None) -> str:
    """Return an address at which an agent can listen: the first free port of a range, or port 0, which is any.

    Args:
        host: name or address of this host.
        ports: first and last port of the range; None for port 0.

    Raises:
        ConfigError: no port is free.
    """
    if ports is None:
        return f"tcp://{host}:0"
    first, last = ports
    for port in range(first, last + 1):
        try:
            check_address(f"tcp://{host}:{port}")
        except AgentError as error:
            if getattr(error.__cause__, "errno", None) not in (errno.EADDRINUSE, errno.EACCES):
                raise
        else:
            return f"tcp://{host}:{port}"
    raise ConfigError(
        f"--ports must hold a port that is free at {host}, got {first}-{last}; end what listens there, or run "
        "`sophon-agent ray stop`, then `start` with a wider range"
    )


def host_at(interface: str) -> str:
    """Return the address of a network interface of this host; for "", the node's address in Ray.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    if not interface:
        import ray

        host = str(ray.util.get_node_ip_address())
        return f"[{host}]" if ":" in host else host
    found = psutil.net_if_addrs()
    if interface not in found:
        raise ConfigError(f"--interface must be one of {', '.join(sorted(found))} here, got {interface!r}")
    addresses: list[str] = [one.address for one in found[interface] if one.family == socket.AF_INET]
    addresses += [f"[{one.address}]" for one in found[interface] if one.family == socket.AF_INET6]
    if not addresses:
        raise ConfigError(f"--interface must have an address, got {interface!r}, which has none")
    return addresses[0]


class Agents(NamedTuple):
    """Settings shared by the agents of a fleet.

    Args:
        resource: resource of Ray; each agent holds 1 of it.
        arguments, interface, ports: see `SophonAgent`.
    """

    resource: str
    arguments: tuple[str, ...]
    interface: str
    ports: tuple[int, int] | None

    def name(self, number: int) -> str:
        """Return an actor's name in Ray."""
        return f"{self.resource}-{number}"

    def number(self, name: str) -> int | None:
        """Return the number in an actor's name; None for any other name."""
        resource, _, number = name.rpartition("-")
        return int(number) if resource == self.resource and number.isdecimal() else None

    def start(self, number: int) -> None:
        """Start an actor of this number, unless there is one. It may wait for a node."""
        import ray

        kind: Any = ray.remote(num_cpus=0, resources={self.resource: 1}, max_restarts=-1)(SophonAgent)
        options = {"name": self.name(number), "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        kind.options(**options).remote(list(self.arguments), self.interface, self.ports)
