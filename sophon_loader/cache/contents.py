"""Whether agents serve the content that the cache on this host has copies of, where no file is mounted.

An archive or a listing does not change while an agent serves it, and `Sizes.root` tells it from all others. So each
connection with an agent is asked for that once, and again when it was lost and came back: behind it may be an agent
that was started anew, with other files. What crosses within one connection is of one agent, and so of one content.
"""

from __future__ import annotations

from typing import Any

from sophon_loader.client.session import Session
from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.host.system import now_s
from sophon_loader.wire.messages import AskSizes, Sizes

Connections = tuple[tuple[int, int], ...]
"""Per agent that is asked for samples, its number and which of its connections that is, by `Link.reconnects`."""

_TRIES = 3
"""How often an agent is asked whose connection is lost meanwhile."""
_WAIT_S = 0.1
"""How long to wait for a message before looking at the connection again."""


class Contents:
    """The content that agents serve to one process.

    Args:
        expected: what they must say of it, as `Sizes.root` has it.

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
        """Per agent that has told it, in which connection."""
        self._silent: dict[int, int] = {}
        """Per agent that has not told it, though it was asked, in which connection."""
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
        """By which connections the expected content is served now; None where that is not known of all agents. Waits
        for those that have not told it yet.

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
        """Whether what was asked for after `before` was looked at, and has come from the agent that has answered last,
        is of the expected content."""
        session = self._session
        if session is None or before is None:
            return False
        number = session.lanes.index(session.answered)
        return (number, session.answered.connection.current()) in before

    def _ask(self, number: int, lane: Session) -> int:
        """The connection in which an agent has told the expected content; -1 if it has told nothing."""
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
    """What an agent says of the content of its export, and in which connection (`Link.current`); "" if it is silent for
    `dead_after_s`, or the connection was lost meanwhile. What else comes is kept.
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
