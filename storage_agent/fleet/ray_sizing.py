"""The actor that starts and stops the agents of a Ray cluster by what trainings say that they could use.

Of what it has done it keeps nothing: after a restart it goes on from the names of the agents that Ray has.
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
"""The name of the actor's class, which is not the agents': loaders do not see it."""
ANSWER_S = 5.0
"""How long a question to it may take."""
_HANGS_S = 10.0
"""A folder that takes longer is said not to answer."""
_KILL_S = END_S + 2.0


def sizer_name(resource: str) -> str:
    """Its name in Ray; no agent has that."""
    return f"{resource}-size"


class SizingState(NamedTuple):
    """What the actor says of itself. `wanted`: agents; `trouble`: why it keeps the number of now, "" if it does not."""

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
    """The actor. A thread of its own looks at the folder, so that one that hangs holds up no answer.

    Args:
        agents: that it starts.
        folder: in which they announce themselves, on the node that this actor is on.
        least, most: how many agents.
        held_s, gone_s: as of `FleetSize`.
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
        """Since when the folder is being read."""
        self._acts = threading.Lock()
        self._ending = False
        threading.Thread(target=self._keep, name="size-fleet", daemon=True).start()

    def said(self) -> SizingState:
        """For people."""
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
            except Exception as error:  # Ray's head is away, say; it may come back
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
        """Those of the agents that are there, or wait for a node."""
        import ray

        listed = ray.util.list_named_actors(all_namespaces=True)
        found = {self._agents.number(one["name"]) for one in listed if one["namespace"] == NAMESPACE}
        return {number for number in found if number is not None}

    def _leave(self, number: int) -> None:
        import ray

        actor = ray.get_actor(self._agents.name(number), namespace=NAMESPACE)
        self._leaving[number] = Leaving(actor, actor.end.remote(), time.monotonic() + _KILL_S)

    def _finish(self) -> None:
        """End for good what has answered its last requests, and what takes too long: it may never have had a node."""
        import ray

        for number, one in list(self._leaving.items()):
            ended, _ = ray.wait([one.ended], timeout=0)
            if ended or time.monotonic() >= one.until_s:
                ray.kill(one.actor)
                del self._leaving[number]
