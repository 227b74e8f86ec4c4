"""One address for several agents, as a TCP balancer gives it: each new connection goes to the next one."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from bench.bed.relay import CONNECT_S, Relay
from tests.support.agents import EXPORT, Agent


class Spreader(Relay):
    """Passes connections on to agents by turns, and to the next one where nobody listens.

    Args:
        agents: the first of them gets the first connection, which is that of the process that makes the loader.

    Attributes:
        spread: the number of connections that each agent has been given.

    Example:
        >>> with Spreader([one, other]) as spreader:
        ...     loader = OffloadingDataLoader(dataset, agent=spreader.address(), num_workers=2)
    """

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._targets = [(host, int(port)) for host, port in (one.endpoint[6:].split(":") for one in agents)]
        self._next = 0
        self.spread = [0] * len(agents)
        super().__init__(self._targets[0], round_trip_s=0.0, mbit=0.0)

    def address(self, export: str = EXPORT) -> str:
        """Where a loader finds an export of all of them."""
        return f"tcp://127.0.0.1:{self.port}/{export}"

    def __enter__(self) -> Spreader:
        return self

    def skip(self) -> None:
        """Pass over the agent whose turn it is."""
        self._next = (self._next + 1) % len(self._targets)

    def connected(self) -> socket.socket:
        """A connection to the agent whose turn it is, or to the next one that has a listener."""
        for _ in self._targets:
            number, self._next = self._next, (self._next + 1) % len(self._targets)
            try:
                found = socket.create_connection(self._targets[number], CONNECT_S)
            except OSError:
                continue
            self.spread[number] += 1
            return found
        raise OSError("no agent listens")
