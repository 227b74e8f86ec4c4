"""Checks that agents serve the content that the cache has copies of, if no file is mounted here.

An archive or a listing does not change while an agent serves it, and `Sizes.root` identifies it. So each connection to
an agent is asked for it once, and again after it was lost and renewed: the new connection may lead to a restarted agent
with other files. All messages of one connection come from one agent, and so from one content.
"""

from __future__ import annotations

from typing import Any

from sophon_loader.client.session import Session
from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.host.system import now_s
from sophon_loader.wire.messages import AskSizes, Sizes

Connections = tuple[tuple[int, int], ...]
"""For each agent that is asked for samples: its number, and the count of its connections (`Link.reconnects`)."""

_TRIES = 3
"""Number of questions to an agent whose connection is lost before it answers."""
_WAIT_S = 0.1
"""Seconds to wait for a message before the connection is checked again."""


class Contents:
    """The content that agents serve to one process.

    Args:
        expected: the content that they must report, in the form of `Sizes.root`.

    Attributes:
        session: leads to the agents; None without one.

    Example:
        >>> contents = Contents("tar:///data/photos.tar (index 5f0c...)")
        >>> contents.session = session
        >>> before = contents.looked()
        >>> session.next(batch)
        >>> contents.same(before)  # it is of the expected content
        True
    """

    def __init__(self, expected: str) -> None:
        self._expected = expected
        self._told: dict[int, int] = {}
        """For each agent that has reported its content: the connection that it used."""
        self._silent: dict[int, int] = {}
        """For each agent that was asked and did not report its content: the connection that it was asked by."""
        self._session: Session | Fleet | None = None

    @property
    def session(self) -> Session | Fleet | None:
        """See the class."""
        return self._session

    @session.setter
    def session(self, session: Session | Fleet | None) -> None:
        if session is not self._session:
            self._session, self._told, self._silent = session, {}, {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}

    def looked(self) -> Connections | None:
        """Return the connections that serve the expected content now; None unless that is known of all agents.

        Waits for agents that have not reported their content yet.

        Raises:
            ConfigError: an agent serves other content.
        """
        if self._session is None or not self._expected:
            return None
        found = []
        for number, lane in enumerate(self._session.lanes):
            if lane.gone:
                continue
            current = lane.connection.current()
            if self._told.get(number) != current:
                current = -1 if self._silent.get(number) == current else self._ask(number, lane)
                if current < 0:
                    return None
            found.append((number, current))
        return tuple(found) or None

    def same(self, before: Connections | None) -> bool:
        """True if the newest reply is of the expected content.

        Args:
            before: result of `looked` from before the sample was requested.
        """
        session = self._session
        if session is None or before is None:
            return False
        number = session.lanes.index(session.answered)
        return (number, session.answered.connection.current()) in before

    def _ask(self, number: int, lane: Session) -> int:
        """Ask an agent for its content. Returns the connection on which it reported the expected one; -1 if it reported
        nothing.

        Args:
            number: of the agent.
            lane: leads to the agent.

        Raises:
            ConfigError: it serves other content.
        """
        for _ in range(_TRIES):
            root, current = _root(lane)
            if root and current == lane.connection.current():
                break
            if current == lane.connection.current():
                self._silent[number] = current
                return -1
        else:
            return -1
        if root != self._expected:
            raise ConfigError(
                f"agents must serve the same files as long as a loader with a cache runs, got {root} from "
                f"{lane.terms.address}, and {self._expected} when the loader was made; make the loader anew if the "
                "data was replaced, give all agents copies of equal paths, sizes and times (rsync -t), or leave out "
                "cache= and cache_gb="
            )
        self._told[number] = current
        return current


def _root(lane: Session) -> tuple[str, int]:
    """Ask an agent for the content of its export; other messages that arrive meanwhile are not lost.

    Returns:
        The content, and the connection (`Link.current`) that was asked. The content is "" if the agent is silent for
            `dead_after_s`, or the connection was lost meanwhile.
    """
    options, again_s = lane.terms.options, now_s()
    end_s = again_s + options.dead_after_s
    while lane.hear(0) is not None:
        pass  # an answer to an earlier question may be of an earlier connection
    current = lane.connection.current()
    lane.asks_beside = True
    try:
        while now_s() < end_s and lane.connection.current() == current:
            if now_s() >= again_s:  # the question or its answer may have been damaged, or refused as one too many
                lane.connection.send(AskSizes(lane.terms.address.export, []))
                again_s = now_s() + options.heartbeat_s
            if isinstance(heard := lane.hear(_WAIT_S), Sizes):
                return heard.root, current
    except AgentUnreachable:
        pass  # this process ends, or the agent takes nothing
    finally:
        lane.asks_beside = False
    return "", current
