"""A sample's file, when the agent is not there, or nothing can be made of what it has sent."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

from sophon_loader.cache.worker_cache import WorkerCache
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.session import Session, Terms
from sophon_loader.client.wanted import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import AgentUnreachable, SophonError
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.host.regular import Seen, read_regular, seen
from sophon_loader.wire.messages import Sample


def read_here(
    wanted: Wanted, locations: Locations, terms: Terms | None, kept: WorkerCache, why: str = ""
) -> tuple[bytes, bool]:
    """The file of a sample, and whether it is from the cache.

    Args:
        wanted: the sample.
        locations: of the dataset's files.
        terms: agreed on with the agent that does not answer, or that need not be asked; None without an agent.
        kept: of the files, on this host.
        why: what was got from it instead of the sample.

    Raises:
        AgentUnreachable: the agent does not answer, and the dataset's folder is not on this host.
        OSError: the folder is here, and the file cannot be read, or is none that has an end.
    """
    root = locations.root_here(wanted.source)
    path = locations.path_here(wanted.sample)
    if path is None or root is None or (terms is not None and not os.path.isdir(root)):
        which = f"{wanted.sample} ({wanted.key!r}) cannot be read on this host (root {root})"
        if terms is not None and terms.roster:
            raise AgentUnreachable(
                f"an agent that {terms.roster} names must answer, {why or 'got no agent'}; start one and continue from "
                f"the last checkpoint, since sample {which}"
            )
        raise AgentUnreachable(
            f"agent {agent_name(terms)} must answer, {why or 'got no agent'}; restart the agent and continue from the "
            f"last checkpoint, since sample {which}"
        )
    return kept.read(path)


class FallbackFiles:
    """The files of samples of whose answers nothing can be made: below the dataset's root, else from the agent as they
    are, over a connection of its own. Also asks the agent that has answered once more.

    Args:
        locations: of the dataset's files.
        terms: agreed on with the agent; None without one.

    Attributes:
        session: leads to the agents; None without one.
    """

    def __init__(self, locations: Locations, terms: Terms | None) -> None:
        self._locations = locations
        self._terms = terms
        self._connections: tuple[int, dict[Address, Connection]] = 0, {}
        self.session: Session | Fleet | None = None

    def has(self, wanted: Wanted) -> bool:
        """Whether this host has the file."""
        path = self._locations.path_here(wanted.sample)
        return path is not None and os.path.isfile(path)

    def seen(self, wanted: Wanted) -> Seen | None:
        """What tells the file on this host from one that takes its place; None if it is not here."""
        path = self._locations.path_here(wanted.sample)
        try:
            return None if path is None else seen(path)
        except OSError:
            return None

    def here(self, wanted: Wanted) -> bytes | None:
        """The file, if this host has it and it can be read."""
        path = self._locations.path_here(wanted.sample)
        try:
            return None if path is None else read_regular(path)
        except OSError:
            return None

    def there(self, wanted: Wanted) -> bytes:
        """The file, as of `elsewhere`."""
        return self.elsewhere(wanted)[0]

    def elsewhere(self, wanted: Wanted) -> tuple[bytes, str]:
        """The file, from the agent; of several, from another than has answered, if one has it. Waits for it.

        Returns:
            The file, and what error texts call the agent that it is from.

        Raises:
            AgentUnreachable: it does not come within `dead_after_s`.
            CorruptMessage: it arrives damaged, however often it is asked for.
            SophonError: whatever else the agent answers.
        """
        assert self.session is not None, "without an agent there is no answer of which nothing can be made"
        answered, lanes = self.session.answered, self.session.lanes
        for lane in lanes:
            if lane is not answered and not lane.gone:
                with contextlib.suppress(SophonError):
                    return self._file_of(lane, wanted), agent_name(lane.terms)
        return self._file_of(answered, wanted), agent_name(answered.terms)

    def _file_of(self, lane: Session, wanted: Wanted) -> bytes:
        terms, pid = lane.terms, os.getpid()
        if self._connections[0] != pid:
            self._connections = pid, {}
        connections = self._connections[1]
        if terms.address not in connections:
            connections[terms.address] = Connection(terms.address, 1, terms.options)
        return connections[terms.address].file(lane.key(wanted), terms.options.dead_after_s)

    def again(self, wanted: Wanted, epoch: int) -> tuple[Sample, Payload]:
        """What the agent makes of a sample when it is asked once more; waits for it.

        Args:
            wanted: the sample, and at which cut and encoding.
            epoch: of its random numbers.

        Raises:
            SophonError: see `there`.
        """
        assert self.session is not None, "without an agent there is nothing to ask again"
        return self.session.again(wanted, epoch)

    def size_there(self, wanted: Wanted) -> int:
        """Bytes that the file has at the agent that has answered.

        Raises:
            SophonError: see `there`.
        """
        return self.again(replace(wanted, cut=0, encoding="file", prices=None), epoch=0)[0].file_nbytes

    def name(self) -> str:
        """What error texts call the agent that has answered."""
        return agent_name(self._terms if self.session is None else self.session.answered.terms)

    def who(self) -> str:
        """The same, where behind its address may be several."""
        instance = "" if self.session is None else self.session.instance()
        return self.name() + (f" (instance {instance})" if instance else "")

    def close(self) -> None:
        """Close this process's connections, if it has any."""
        for connection in self._connections[1].values() if self._connections[0] == os.getpid() else ():
            connection.close()
        self._connections = 0, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": (0, {}), "session": None}


def agent_name(terms: Terms | None) -> str:
    """What error texts call the agent."""
    return "None" if terms is None else str(terms.address)
