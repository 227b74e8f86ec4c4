"""The actor that starts and stops the agents of a Ray cluster, by the trainings' wishes.

It stores nothing: after a restart it goes on from the names of the agents that Ray has.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sophon_loader.wire.entry import GONE_S
from storage_agent.fleet.fleet_size import HELD_S, LOOK_S, FleetSize, FoundWantedFile
from storage_agent.fleet.ray_agent import END_S, NAMESPACE, Agents
from storage_agent.fleet.wanted_files import read_wanted

SIZER_CLASS = "FleetSizer"
"""Name of the actor's class, which differs from the agents': loaders do not see it."""
ANSWER_S = 5.0
"""Time limit for the actor's answer, in seconds."""
_HANGS_S = 10.0
"""Seconds after which a folder counts as not answering."""
_KILL_S = END_S + 2.0


def sizer_name(resource: str) -> str:
    """Return the actor's name in Ray; no agent has that."""
    return f"{resource}-size"


class SizingState(NamedTuple):
    """State of the actor. `wanted`: agents; `trouble`: reason why it keeps the current number, "" if there is none."""

    wanted: int | None
    least: int | None
    most: int | None
    trouble: str


class Leaving(NamedTuple):
    """An agent that answers its last requests."""

    actor: Any
    ended: Any
    until_s: float


class FleetSizer:
    """The actor. A separate thread reads the folder, so that a folder that hangs delays no answer.

    Args:
        agents: settings of those that it starts.
        folder: in which they announce themselves, on this actor's node.
        least, most: bounds of the number of agents.
        held_s, gone_s: see `FleetSize`.
    """

    def __init__(
        self,
        agents: Agents,
        folder: str,
        least: int,
        most: int,
        held_s: float = HELD_S,
        gone_s: float = GONE_S,
    ) -> None:
        self._agents, self._folder = agents, folder
        self._rule = FleetSize(least, most, held_s=held_s, gone_s=gone_s)
        self._wanted = least
        self._trouble = ""
        self._leaving: dict[int, Leaving] = {}
        self._asked_s: float | None = None
        """Time at which reading the folder began; None if it is not being read."""
        self._acts = threading.Lock()
        self._ending = False
        threading.Thread(target=self._keep, name="size-fleet", daemon=True).start()

    def said(self) -> SizingState:
        """Return the state."""
        asked_s = self._asked_s
        hangs = asked_s is not None and time.monotonic() - asked_s > _HANGS_S
        trouble = f"{self._folder} cannot be read: its disk does not answer" if hangs else self._trouble
        return SizingState(self._wanted, self._rule.least, self._rule.most, trouble)

    def end(self) -> None:
        """Start and stop no agent from now on."""
        with self._acts:
            self._ending = True

    def _keep(self) -> None:
        while True:
            files, trouble = self._read()
            try:
                with self._acts:
                    if self._ending:
                        return
                    self._act(files)
            except Exception as error:  # for instance, Ray's head is away; it may come back
                trouble = trouble or f"Ray does not do its part: {type(error).__name__}: {error}"
            if trouble != self._trouble:
                self._trouble = trouble
                print(f"sophon-agent ray: {trouble or 'all is well again'}", file=sys.stderr, flush=True)
            time.sleep(LOOK_S)

    def _read(self) -> tuple[Mapping[str, FoundWantedFile] | None, str]:
        self._asked_s = time.monotonic()
        try:
            return read_wanted(self._folder), ""
        except OSError as error:
            return None, f"{self._folder} cannot be read on this node: {error.strerror or error}"
        finally:
            self._asked_s = None

    def _act(self, files: Mapping[str, FoundWantedFile] | None) -> None:
        self._finish()
        there = self._numbers()
        present = sorted(there - self._leaving.keys())
        self._wanted = self._rule.after(files, len(present), time.monotonic())
        for number in present[self._wanted :]:
            self._leave(number)
        free = (number for number in range(self._wanted + len(there)) if number not in there)
        for _, number in zip(range(self._wanted - len(present)), free, strict=False):
            self._agents.start(number)

    def _numbers(self) -> set[int]:
        """Return the numbers of the agents that run, or wait for a node."""
        import ray

        listed = ray.util.list_named_actors(all_namespaces=True)
        found = {self._agents.number(one["name"]) for one in listed if one["namespace"] == NAMESPACE}
        return {number for number in found if number is not None}

    def _leave(self, number: int) -> None:
        import ray

        actor = ray.get_actor(self._agents.name(number), namespace=NAMESPACE)
        self._leaving[number] = Leaving(actor, actor.end.remote(), time.monotonic() + _KILL_S)

    def _finish(self) -> None:
        """End agents that have answered their last requests, or take too long: they may never have had a node."""
        import ray

        for number, one in list(self._leaving.items()):
            ended, _ = ray.wait([one.ended], timeout=0)
            if ended or time.monotonic() >= one.until_s:
                ray.kill(one.actor)
                del self._leaving[number]
