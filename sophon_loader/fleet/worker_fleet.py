"""The ways of one process to the agents of a loader: who has agreed, the session with these, and what is found out."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sophon_loader.client.session import Session, Terms
from sophon_loader.errors import AgentUnreachable
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.fleet.homes import connected
from sophon_loader.fleet.lacking import Lacking
from sophon_loader.fleet.shared_route import Agreed, SharedRoute
from sophon_loader.host.system import now_s
from sophon_loader.wire.messages import Sample

_LOOK_S = 0.1
"""How often it is looked whether an agent has come."""


class WorkerFleet:
    """Of a loader's agents, in the order in which they have agreed. Not shared: each process has a copy of its own.

    Args:
        routes: one per agent; none without an agent.

    Attributes:
        agreed: what the agents that have agreed by now have agreed to.
    """

    def __init__(self, routes: Sequence[SharedRoute]) -> None:
        self._routes = tuple(routes)
        self._heads = [route for route in routes if route.is_first]
        self._versions: list[int] = []
        """Of the routes, when they were looked at last."""
        self._numbers: list[int] = []
        """Those of `agreed` among the routes."""
        self._connected: list[int] = []
        """Those of the session's lanes."""
        self._left: set[int] = set()
        """Those of `agreed` whose agents have left since."""
        self._cores: dict[int, tuple[float, float]] = {}
        """Per route, what its agent has said last of its cores."""
        self._lost_s: list[float] = []
        self._meanwhile: tuple[int, Callable[[], None]] | None = None
        """Of `call_meanwhile`, and the process that it is for: a worker that is forked has a copy."""
        self.agreed: list[Agreed] = []

    def look(self) -> bool:
        """Whether another agent has agreed since this was asked last. One that has left is asked for nothing more."""
        versions = [route.version for route in self._heads]
        if versions == self._versions:
            return False
        self._versions = versions
        known = dict(zip(self._numbers, self.agreed, strict=True))
        now = {n: agreed for n, route in enumerate(self._routes) if (agreed := route.agreed()) is not None}
        stay = [number for number, agreed in known.items() if now.get(number) == agreed]
        self._left = known.keys() - stay
        if now.keys() <= set(stay):
            return False
        self._numbers = [*stay, *(number for number in now if number not in stay)]
        self.agreed, self._left = [now[number] for number in self._numbers], set()
        return True

    @property
    def terms(self) -> Terms | None:
        """Those of the agent that agreed first, which says where the files lie; None before that."""
        return self.agreed[0].terms if self.agreed else None

    def session(self, worker: int, workers: int, folders: Sequence[str] = ()) -> Session | Fleet | None:
        """A new one, with the agents that have agreed, of many with a part; None with none.

        Args:
            worker: its number.
            workers: how many there are.
            folders: of each of `agreed`, the folder of its export that corresponds to the first one's, with which keys
                begin; () for those of their places.
        """
        folders = folders or [one.place[0] for one in self.agreed]
        placed = {
            number: replace(one.terms, address=replace(one.terms.address, folder=folder))
            for number, one, folder in zip(self._numbers, self.agreed, folders, strict=True)
        }
        agreed = dict(sorted(zip(self._numbers, self.agreed, strict=True)))
        numbers = list(agreed)
        if len(connected(len(numbers), worker, workers)) < len(numbers):  # rather to those that live
            numbers = [number for number in numbers if not self._routes[number].gone(worker)] or numbers
        self._connected = [numbers[n] for n in connected(len(numbers), worker, workers)]
        self._lost_s = [0.0] * len(self._connected)
        if len(agreed) == 1 and not self.agreed[0].terms.may_leave:
            return Session(self.agreed[0].terms)
        if not agreed:
            return None
        terms = [placed[number] for number in self._connected]
        unlike = len({one.reach for one in self.agreed}) > 1
        lacking = Lacking([self._routes[number].lacking for number in self._connected])
        reaches = [agreed[number].reach for number in self._connected] if unlike else ()
        return Fleet(terms, reaches, folders[0], lacking, lambda: self._routes[0].awaited_s)

    def trust(self, session: Session | Fleet, worker: int, *, mounted: bool) -> None:
        """Expect of each agent what this worker, others before it and the main process have found out.

        Args:
            session: of this process.
            worker: its number.
            mounted: whether all files can be read on this host.
        """
        several = len(set(self._connected) - self._left) > 1
        for lane, number in enumerate(self._connected):
            if number in self._left:
                if not session.lanes[lane].gone:
                    session.lanes[lane].leave("has left", in_order=True)
                session.trust(gone=True, left_s=0.0, agent=lane)
                continue
            route = self._routes[number]
            left_s = route.left_s(worker) if mounted else math.inf
            # Without another agent and without the files, one that has gone is waited for all the same.
            gone = (mounted or several) and (left_s <= 0 or route.gone(worker))
            session.trust(gone=gone, left_s=left_s, agent=lane)

    def asked(self, session: Session | Fleet) -> dict[int, Agreed]:
        """What those of several agents have agreed to that this process has asked in vain, and that live."""
        known = dict(zip(self._numbers, self.agreed, strict=True))
        lanes = zip(session.lanes, self._connected, strict=True)
        return {number: known[number] for lane, number in lanes if not lane.gone}

    def has_another(self, asked: Mapping[int, Agreed], worker: int) -> bool:
        """Whether an agent can be asked that is not among those `asked`: one that has come, or is back."""
        return any(
            (agreed := route.agreed()) is not None and asked.get(number) != agreed and not route.gone(worker)
            for number, route in enumerate(self._routes)
        )

    def another_comes(self, asked: Mapping[int, Agreed], worker: int, end_s: float) -> bool:
        """Wait for one; False if there is none before a time is over, or there is but one agent."""
        if len(self._routes) == 1:
            return False
        while not self.has_another(asked, worker):
            if now_s() >= end_s:
                return False
            self._call_meanwhile()
            time.sleep(_LOOK_S)
        return True

    def look_around(self, session: Session | Fleet, worker: int) -> None:
        """While samples are waited for that only agents have.

        Raises:
            AgentUnreachable: those that were asked have closed their connections, and another can be asked.
        """
        self._call_meanwhile()
        if all(lane.gone or lane.connection.lost for lane in session.lanes):
            self.note(session, worker)
            if self.has_another(self.asked(session), worker):
                raise AgentUnreachable("agents must answer, got their connections closed; restart them, and continue")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_meanwhile": None}

    def call_meanwhile(self, what: Callable[[], None] | None) -> None:
        """What to call now and then, in this process alone, while agents are waited for; None for nothing."""
        self._meanwhile = None if what is None else (os.getpid(), what)

    def _call_meanwhile(self) -> None:
        if self._meanwhile is not None and self._meanwhile[0] == os.getpid():
            self._meanwhile[1]()

    def note(self, session: Session | Fleet, worker: int) -> None:
        """Tell the other processes what this worker has found out since it did so last."""
        for place, (lane, number) in enumerate(zip(session.lanes, self._connected, strict=True)):
            lost_s, self._lost_s[place] = lane.lost_s - self._lost_s[place], lane.lost_s
            if number in self._left:
                continue  # its place may be another's
            self._routes[number].note(worker, lane.gave_up_s, lost_s)

    def hear(self, session: Session | Fleet, worker: int, sample: Sample, nbytes: int) -> tuple[float, float]:
        """A sample has come from the agent that has answered last.

        Args:
            session: of this process.
            worker: its number.
            sample: that has come.
            nbytes: of its payload.

        Returns:
            The cores that this process can count on, of all agents that live, and those that each of their workers has.
        """
        number = self._connected[session.lanes.index(session.answered)]
        self._routes[number].hear(worker)
        if len(self._routes) == 1:
            return sample.cores, sample.per_worker
        self._routes[number].count(worker, nbytes)
        self._cores[number] = sample.cores, sample.per_worker
        living = [
            n for lane, n in zip(session.lanes, self._connected, strict=True) if not lane.gone and n in self._cores
        ]
        told = [self._cores[n] for n in living] or [(sample.cores, sample.per_worker)]
        return sum(cores for cores, _ in told), sum(each for _, each in told) / len(told)
