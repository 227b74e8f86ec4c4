"""`sophon-agent ray`: one agent on each storage node of a Ray cluster, kept by an actor that Ray restarts.

Ray starts the actors and lists where they are; no sample and no key passes through it. The agent is a child process of
its actor, so that nothing of it runs among Ray's threads, and ends with it. Ray is imported by what needs it alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from sophon_loader.errors import AgentUnreachable, ConfigError, SophonError
from sophon_loader.figures import counted
from sophon_loader.wire.actor import ACTOR_CLASS, actor_text, parse_actor
from sophon_loader.wire.announcement import announced
from sophon_loader.wire.entry import host_and_port

NAMESPACE = "sophon"
MAX_AGENTS = 1000
_PROGRAM = Path(__file__).with_name("pinned.py")
_AGAIN_S = 5.0
"""A pause before an agent that did not start is tried again: a folder may not be mounted yet."""
_END_S = 20.0
"""How long an agent may take to answer its last requests when it is stopped."""
_LOOK_S = 0.5
_CONNECT_S = 5.0
_USUAL_PORT = 6379
_SERVES, _GONE = "ALIVE", "DEAD"


class SophonAgent:
    """The actor. Ray restarts one whose process has died, and no other: so whatever goes wrong ends the process.

    Args:
        arguments: of `sophon-agent serve`, without an address.
        interface: the network interface whose address is taken; "" for the node's address in Ray.
    """

    def __init__(self, arguments: Sequence[str], interface: str) -> None:
        self._ending = False
        try:
            command = [sys.executable, str(_PROGRAM), "serve", *arguments]
            bind = f"tcp://{_host(interface)}:0"
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
        """Have the agent answer its last requests, and end."""
        self._ending = True
        self._agent.terminate()
        self._agent.wait(_END_S)

    def _end_with_agent(self) -> None:
        self._agent.wait()
        if not self._ending:
            os._exit(1)


def _host(interface: str) -> str:
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


class Kept(NamedTuple):
    """An agent's actor as Ray lists it. `address`: "" while its agent does not serve."""

    name: str
    state: str
    restarts: int
    address: str
    exports: tuple[str, ...]

    def line(self) -> str:
        """For people."""
        restarts = f" (restarted {counted(self.restarts, 'time')})" if self.restarts else ""
        return "  ".join(
            part for part in (self.name, self.state + restarts, self.address, ", ".join(self.exports)) if part
        )


# --- commands -----------------------------------------------------------------------------------------------------


def start(parsed: argparse.Namespace, arguments: Sequence[str]) -> int:
    """Have `parsed.agents` agents, or one for each node that carries the resource, and wait until they serve.

    Args:
        arguments: of `sophon-agent serve`, checked.

    Raises:
        SophonError: there is no cluster, or not all agents serve in time.
    """
    ray = _connected(parsed, log_to_driver=True)
    carriers = _carriers(ray, parsed.resource)
    count = len(carriers) if parsed.agents is None else parsed.agents
    if not count:
        raise ConfigError(_lacking(parsed.resource, 0, 1))
    names = [f"{parsed.resource}-{number}" for number in range(count)]
    known = {one.name: one for one in _kept()}
    kind = ray.remote(num_cpus=0, resources={parsed.resource: 1}, max_restarts=-1)(SophonAgent)
    for name in names:
        if name in known:
            print(f"{name} is there already, and serves what it did; to change that, run `sophon-agent ray stop` first")
            continue
        kind.options(name=name, namespace=NAMESPACE, lifetime="detached", get_if_exists=True).remote(
            list(arguments), parsed.interface
        )
    return _await(ray, parsed, names)


def stop(parsed: argparse.Namespace) -> int:
    """End those agents that hold the resource, each when it has answered its last requests.

    Raises:
        SophonError: there is no cluster.
    """
    ray = _connected(parsed)
    those = [(one, ray.get_actor(one.name, namespace=NAMESPACE)) for one in _of(_kept(), parsed.resource)]
    ends = [actor.end.remote() for one, actor in those if one.state == _SERVES]
    if ends:
        ray.wait(ends, num_returns=len(ends), timeout=_END_S)
    for one, actor in those:
        ray.kill(actor)
        print(f"{one.name} stopped")
    return 0


def show(parsed: argparse.Namespace) -> int:
    """Print a line for each agent.

    Raises:
        SophonError: there is no cluster.
    """
    _connected(parsed)
    found = _kept()
    for one in found:
        print(json.dumps(one._asdict()) if parsed.json else one.line())
    return 0


# --- the cluster ----------------------------------------------------------------------------------------------------


def _connected(parsed: argparse.Namespace, log_to_driver: bool = False) -> Any:
    """Ray, as a driver of the cluster of this host."""
    try:
        import ray
        import ray.util.state
    except ImportError as error:
        raise ConfigError(
            f"`sophon-agent ray` needs Ray with its dashboard, got {error}; run pip install 'sophon_loader[fleet]'"
        ) from error
    try:
        if parsed.address != "auto" and (place := host_and_port(parsed.address)):
            # Ray waits for a minute and more where nobody listens.
            socket.create_connection((place[0].strip("[]"), place[1] or _USUAL_PORT), _CONNECT_S).close()
        ray.init(
            address=parsed.address, namespace=NAMESPACE, log_to_driver=log_to_driver, logging_level=logging.WARNING
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise AgentUnreachable(
            f"Ray must run on this host and be of the cluster, got {error}; run this on the head or another node, and "
            "with the cluster's RAY_AUTH_TOKEN if it has one"
        ) from error
    return ray


def _kept() -> list[Kept]:
    """All agents that are not gone, by name."""
    from ray.util.state import list_actors
    from ray.util.state.exception import RayStateApiException

    filters = [("class_name", "=", ACTOR_CLASS), ("state", "!=", _GONE)]
    try:
        listed = list_actors(filters=filters, limit=MAX_AGENTS, detail=True, raise_on_missing_output=False)
    except RayStateApiException as error:
        raise AgentUnreachable(f"Ray's head must list its actors, got {error}; its dashboard must run") from error
    found = [_as_kept(one) for one in listed if one.ray_namespace == NAMESPACE]
    return sorted(found, key=lambda one: (len(one.name), one.name))


def _as_kept(listed: Any) -> Kept:
    said = parse_actor(listed.repr_name or "") if listed.state == _SERVES else None
    return Kept(listed.name or "", listed.state, int(listed.num_restarts or 0), *(said or ("", ())))


def _of(those: Iterable[Kept], resource: str) -> list[Kept]:
    return [one for one in those if one.name.rpartition("-")[0] == resource]


def _carriers(ray: Any, resource: str) -> list[str]:
    """The living nodes that carry the resource."""
    return [
        one["NodeManagerAddress"] for one in ray.nodes() if one["Alive"] and one["Resources"].get(resource, 0.0) >= 1
    ]


def _await(ray: Any, parsed: argparse.Namespace, names: Sequence[str]) -> int:
    end_s = time.monotonic() + parsed.wait
    while True:
        found = [one for one in _kept() if one.name in names]
        missing = [one for one in found if one.state != _SERVES]
        if len(found) == len(names) and not missing:
            for one in found:
                print(one.line())
            return 0
        if time.monotonic() >= end_s:
            break
        time.sleep(_LOOK_S)
    for one in found:
        print(one.line())
    raise AgentUnreachable("; ".join(_why(ray, parsed, names, found)))


def _why(ray: Any, parsed: argparse.Namespace, names: Sequence[str], found: Sequence[Kept]) -> list[str]:
    """Why not all agents serve."""
    serve = sum(one.state == _SERVES for one in found)
    told = [f"{counted(len(names), 'agent')} must serve within {parsed.wait:g} s, got {serve}"]
    waiting = [one for one in found if one.state != _SERVES]
    if waiting and (carriers := len(_carriers(ray, parsed.resource))) < len(names):
        told.append(_lacking(parsed.resource, carriers, len(names)))
    elif slow := [one.name for one in waiting if not one.restarts]:
        told.append(f"{', '.join(slow)} may still start, or wait for a node whose {parsed.resource!r} is free")
    if again := [one.name for one in waiting if one.restarts]:
        told.append(f"{', '.join(again)} did not start, and Ray tries again; the agent's own words stand above")
    if gone := sorted(set(names) - {one.name for one in found}):
        told.append(f"{', '.join(gone)} ended for good; `ray list actors --detail` says why")
    return told


def _lacking(resource: str, carriers: int, wanted: int) -> str:
    given = json.dumps({resource: 1})
    return (
        f"{counted(carriers, 'node')} of the cluster {'carries' if carriers == 1 else 'carry'} the resource "
        f"{resource!r}, and {counted(wanted, 'agent')} {'needs' if wanted == 1 else 'need'} one each; start more nodes "
        f"with `ray start --resources='{given}'`, which then get the agents that wait"
    )
