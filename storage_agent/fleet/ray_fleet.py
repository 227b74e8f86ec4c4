"""`sophon-agent ray`: one agent on each storage node of a Ray cluster, kept by an actor that Ray restarts.

Ray starts the actors and lists where they are; no sample and no key passes through it. The actors are in `ray_agent.py`
and, for a fleet that sizes itself, `ray_sizing.py`. Only functions that need Ray import it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.figures import counted
from sophon_loader.wire.actor import ACTOR_CLASS, parse_actor
from sophon_loader.wire.entry import host_and_port
from storage_agent.fleet import fleet_size
from storage_agent.fleet.ray_agent import END_S, NAMESPACE, Agents
from storage_agent.fleet.ray_sizing import ANSWER_S, SIZER_CLASS, FleetSizer, SizingState, sizer_name

MAX_AGENTS = 1000
_LOOK_S = 0.5
_CONNECT_S = 5.0
_USUAL_PORT = 6379
_SERVES, _GONE = "ALIVE", "DEAD"


class ListedAgent(NamedTuple):
    """An agent's actor as Ray lists it. `address` is "" while its agent does not serve."""

    name: str
    state: str
    restarts: int
    address: str
    exports: tuple[str, ...]

    def line(self) -> str:
        """Return it as a line of text."""
        return "  ".join(part for part in (self.name, _state(self), self.address, ", ".join(self.exports)) if part)


def _state(one: ListedAgent | Sizing) -> str:
    return one.state + (f" (restarted {counted(one.restarts, 'time')})" if one.restarts else "")


class Sizing(NamedTuple):
    """The actor that sizes a fleet. `wanted`: agents; None if it does not answer. `present`: agents that serve."""

    name: str
    state: str
    restarts: int
    wanted: int | None
    present: int
    least: int | None
    most: int | None
    trouble: str

    def line(self) -> str:
        """Return it as a line of text."""
        wanted = "?" if self.wanted is None else f"{self.wanted} (of {self.least} to {self.most})"
        numbers = f"agents wanted: {wanted}, present: {self.present}"
        return "  ".join(part for part in (self.name, _state(self), numbers, self.trouble) if part)


# --- commands -----------------------------------------------------------------------------------------------------


def start(parsed: argparse.Namespace, arguments: Sequence[str], folder: str) -> int:
    """Start agents, and wait until they serve.

    There are `parsed.agents`, or one for each node that carries the resource. With `parsed.most`, `parsed.least` are
    started, and an actor that starts up to `parsed.most`, by the trainings' wishes.

    Args:
        parsed: the command line.
        arguments: of `sophon-agent serve`, checked.
        folder: in which the agents announce themselves; "" if they do not.

    Raises:
        SophonError: there is no cluster, or not all agents serve in time.
    """
    ray = _connected(parsed, log_to_driver=True)
    end_s = time.monotonic() + parsed.wait
    name = sizer_name(parsed.resource)
    if any(one.name == name for one in _listed(SIZER_CLASS)):
        if parsed.most is None:
            raise ConfigError(f"--min and --max must be given while {name} is there; run `sophon-agent ray stop` first")
        print(f"{name} is there already, and keeps its numbers; to change them, run `sophon-agent ray stop` first")
        return _await_sizer(ray, parsed, end_s)
    carriers = _carriers(ray, parsed.resource)
    count = parsed.least or parsed.agents or len(carriers)
    if not count:
        raise ConfigError(_lacking(parsed.resource, 0, 1))
    known = {one.name for one in _kept()}
    agents = Agents(parsed.resource, tuple(arguments), parsed.interface, parsed.ports)
    names = [agents.name(number) for number in range(count)]
    for number, name in enumerate(names):
        if name in known:
            print(f"{name} is there already, and serves what it did; to change that, run `sophon-agent ray stop` first")
        else:
            agents.start(number)
    if parsed.most is None:
        return _await(ray, parsed, names, end_s)
    _start_sizer(ray, agents, folder, parsed, carriers)
    return _await(ray, parsed, names, end_s) or _await_sizer(ray, parsed, end_s)


def stop(parsed: argparse.Namespace) -> int:
    """End the agents that hold the resource, after their last requests; first the actor that sizes them.

    Raises:
        SophonError: there is no cluster.
    """
    ray = _connected(parsed)
    for sizer, actor in _actors(ray, (one for one in _listed(SIZER_CLASS) if one.name == sizer_name(parsed.resource))):
        ray.wait([actor.end.remote()], timeout=ANSWER_S)
        ray.kill(actor)
        print(f"{sizer.name} stopped")
    those = _actors(ray, _of(_kept(), parsed.resource))
    ends = [actor.end.remote() for one, actor in those if one.state == _SERVES]
    if ends:
        ray.wait(ends, num_returns=len(ends), timeout=END_S)
    for one, actor in those:
        ray.kill(actor)
        print(f"{one.name} stopped")
    return 0


def show(parsed: argparse.Namespace) -> int:
    """Print a line for each agent, and for each actor that sizes a fleet.

    Raises:
        SophonError: there is no cluster.
    """
    ray = _connected(parsed)
    agents = _kept()
    found: list[ListedAgent | Sizing] = [*agents, *(_sizing(ray, sizer, agents) for sizer in _listed(SIZER_CLASS))]
    for one in found:
        print(json.dumps(one._asdict()) if parsed.json else one.line())
    return 0


# --- what sizes a fleet ---------------------------------------------------------------------------------------------


def _start_sizer(ray: Any, agents: Agents, folder: str, parsed: argparse.Namespace, carriers: Sequence[str]) -> None:
    """Start the actor on a node that carries the resource now, where the folder must be; on any if none is left."""
    placed: dict[str, Any] = {}
    if carriers:
        nodes = {"ray.io/node-id": f"in({','.join(carriers)})"}
        placed = {"label_selector": nodes, "fallback_strategy": [{"label_selector": {}}]}
    kind = ray.remote(num_cpus=0, max_restarts=-1, **placed)(FleetSizer)
    options = {"name": sizer_name(agents.resource), "namespace": NAMESPACE, "lifetime": "detached"}
    kind.options(**options, get_if_exists=True).remote(
        agents, folder, parsed.least, parsed.most, held_s=fleet_size.HELD_S
    )


def _await_sizer(ray: Any, parsed: argparse.Namespace, end_s: float) -> int:
    name = sizer_name(parsed.resource)
    while True:
        found = [_sizing(ray, one, _kept()) for one in _listed(SIZER_CLASS) if one.name == name]
        if found and found[0].wanted is not None:
            print(found[0].line())
            return 0
        if time.monotonic() >= end_s:
            seen = found[0].line() if found else "none"
            raise AgentUnreachable(
                f"{name}, which sizes the fleet, must run within {parsed.wait:g} s, got {seen}; "
                "`ray list actors --detail` says why"
            )
        time.sleep(_LOOK_S)


def _sizing(ray: Any, listed: ListedAgent, agents: Sequence[ListedAgent]) -> Sizing:
    resource = listed.name.removesuffix(sizer_name(""))
    present = sum(one.state == _SERVES for one in _of(agents, resource))
    state = listed.state
    try:
        said = SizingState(*ray.get(ray.get_actor(listed.name, namespace=NAMESPACE).said.remote(), timeout=ANSWER_S))
        state = _SERVES  # the list is some time behind
    except (ray.exceptions.RayError, ValueError) as error:
        said = SizingState(None, None, None, f"it does not answer: {str(error).partition(chr(10))[0]}")
    return Sizing(listed.name, state, listed.restarts, said.wanted, present, said.least, said.most, said.trouble)


# --- the cluster ----------------------------------------------------------------------------------------------------


def _connected(parsed: argparse.Namespace, log_to_driver: bool = False) -> Any:
    """Return Ray, connected as a driver of the cluster of this host."""
    try:
        import ray
        import ray.util.state
    except ImportError as error:
        raise ConfigError(
            f"`sophon-agent ray` needs Ray with its dashboard, got {error}; run pip install 'sophon_loader[fleet]'"
        ) from error
    try:
        if parsed.address != "auto" and (place := host_and_port(parsed.address)):
            # If nothing listens there, Ray waits for a minute and more.
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


def _kept() -> list[ListedAgent]:
    """Return all agents that are not gone, by name."""
    return _listed(ACTOR_CLASS)


def _listed(kind: str) -> list[ListedAgent]:
    """Return all actors of a class that are not gone, by name."""
    from ray.util.state import list_actors
    from ray.util.state.exception import RayStateApiException

    filters = [("class_name", "=", kind), ("state", "!=", _GONE)]
    try:
        listed = list_actors(filters=filters, limit=MAX_AGENTS, detail=True, raise_on_missing_output=False)
    except RayStateApiException as error:
        raise AgentUnreachable(f"Ray's head must list its actors, got {error}; its dashboard must run") from error
    found = [_as_kept(one) for one in listed if one.ray_namespace == NAMESPACE]
    return sorted(found, key=lambda one: (len(one.name), one.name))


def _as_kept(listed: Any) -> ListedAgent:
    said = parse_actor(listed.repr_name or "") if listed.state == _SERVES else None
    return ListedAgent(listed.name or "", listed.state, int(listed.num_restarts or 0), *(said or ("", ())))


def _actors(ray: Any, those: Iterable[ListedAgent]) -> list[tuple[ListedAgent, Any]]:
    """Return agents with their handles, without those that have gone since they were listed."""
    found = []
    for one in those:
        with contextlib.suppress(ValueError):
            found.append((one, ray.get_actor(one.name, namespace=NAMESPACE)))
    return found


def _of(those: Iterable[ListedAgent], resource: str) -> list[ListedAgent]:
    return [one for one in those if one.name.rpartition("-")[0] == resource]


def _carriers(ray: Any, resource: str) -> list[str]:
    """Return the ids of the living nodes that carry the resource."""
    return [one["NodeID"] for one in ray.nodes() if one["Alive"] and one["Resources"].get(resource, 0.0) >= 1]


def _await(ray: Any, parsed: argparse.Namespace, names: Sequence[str], end_s: float) -> int:
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


def _why(ray: Any, parsed: argparse.Namespace, names: Sequence[str], found: Sequence[ListedAgent]) -> list[str]:
    """Return the reasons why not all agents serve."""
    serve = sum(one.state == _SERVES for one in found)
    told = [f"{counted(len(names), 'agent')} must serve within {parsed.wait:g} s, got {serve}"]
    waiting = [one for one in found if one.state != _SERVES]
    if waiting and (carriers := len(_carriers(ray, parsed.resource))) < len(names):
        told.append(_lacking(parsed.resource, carriers, len(names)))
    elif slow := [one.name for one in waiting if not one.restarts]:
        told.append(f"{', '.join(slow)} may still start, or wait for a node whose {parsed.resource!r} is free")
    if again := [one.name for one in waiting if one.restarts]:
        told.append(f"{', '.join(again)} did not start, and Ray tries again; see the agent's messages above")
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
