"""Rosters, which name the agents of now: a host name with several addresses, or a folder in which agents announce
themselves (`announced.py`). They are read again and again; nothing here connects to an agent."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from sophon_loader.client.address import Address
from sophon_loader.host.endpoints import host_of

LOOK_S = 5.0
"""Default time limit of a look, in seconds."""
MAX_MEMBERS = 1000
Found = TypeVar("Found")


@dataclass(frozen=True)
class Member:
    """An agent that a roster names.

    Args:
        address: with export and folder, without a key.
        instance: identifies the agent, if the roster knows it; "" else. Members with equal ones are one agent at
            several addresses.
        exports: the agent's exports, if the roster knows them; the address's may be missing.
    """

    address: Address
    instance: str = ""
    exports: tuple[str, ...] | None = None


def able(members: Sequence[Member]) -> list[Member]:
    """Return the members that serve the export of their address, as far as is known."""
    return [one for one in members if one.exports is None or one.address.export in one.exports]


def of_other_exports(members: Sequence[Member]) -> str:
    """Return the reason why none of these is `able`."""
    names = sorted({name for one in members for name in one.exports or ()})
    export = members[0].address.export if members else ""
    return f"no agent that is announced serves {export!r}; they serve {', '.join(names[:8])}"


class Roster(Protocol):
    """A source of agents' addresses, used by one thread.

    Attributes:
        trouble: reason why the last look found nothing, or nothing new; "" if all is well.
        met: agents that are used or tried; they are found even if a roster names more than can be read.
    """

    trouble: str
    met: Collection[Address]

    def look(self, *, ask: bool = True) -> Sequence[Member]:
        """Return the agents of now. If a look fails, return those of the last time; `trouble` says why.

        Args:
            ask: True to look again; False to take what was found since, if looks are not waited for.
        """
        ...

    @property
    def is_looking(self) -> bool:
        """True if a look has begun, and its result was not taken yet."""
        ...


class Resolved:
    """All addresses of a host name, of both families; a headless Service of Kubernetes has one for each agent.

    Args:
        address: its host is looked up at each look.
        wait_s: time limit of a look, in seconds; 0 takes what was found since the last look, without waiting.

    Example:
        >>> Resolved(Address.parse("tcp://agents.default.svc:5555/imagenet")).look()[0].address.endpoint
        'tcp://10.0.0.7:5555'
    """

    def __init__(self, address: Address, *, wait_s: float = LOOK_S) -> None:
        self.trouble = ""
        self.met: Collection[Address] = ()
        self._address = replace(address, token=None)
        self._host, self._port = host_of(address.endpoint), int(address.endpoint.rpartition(":")[2])
        self._members: Sequence[Member] = ()
        self._question = Question(self._look_up, "roster-name", wait_s)

    def look(self, *, ask: bool = True) -> Sequence[Member]:
        """Return the name's addresses now; those of the last time while no name server knows any."""
        try:
            found = self._question.answers(ask=ask)
        except (OSError, UnicodeError) as error:  # the second for a name that cannot be one
            self.trouble = f"{self._host!r} cannot be looked up: {getattr(error, 'strerror', None) or error}"
        else:
            if found:
                self._members = [Member(replace(self._address, endpoint=one)) for one in found[-1]]
                self.trouble = ""
            if self._question.overdue:
                self.trouble = f"no name server answers for {self._host!r}"
        return self._members

    @property
    def is_looking(self) -> bool:
        """See `Roster`."""
        return self._question.is_open

    def _look_up(self) -> list[str]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        hosts = {_numeric(where) for family, *_, where in found if family in (socket.AF_INET, socket.AF_INET6)}
        in_order = sorted(hosts, key=_in_order)[:MAX_MEMBERS]
        return [f"tcp://{f'[{host}]' if ':' in host else host}:{self._port}" for host in in_order]


class Question(Generic[Found]):
    """A question that may never be answered, asked by a separate thread, one at a time.

    Args:
        ask: called by the thread.
        name: of the thread.
        wait_s: time limit of `answers`, in seconds; 0 not to wait.
    """

    def __init__(self, ask: Callable[[], Found], name: str, wait_s: float) -> None:
        self._ask = ask
        self._name = name
        self._wait_s = wait_s
        self._asking: _Asking[Found] | None = None

    def answers(self, *, ask: bool = True) -> list[Found]:
        """Return the answers since the last call, oldest first.

        There may be a late one, and one to a question asked now, if it arrives within `wait_s`.

        Args:
            ask: True to ask again.

        Raises:
            Exception: raised by `ask` now.
        """
        found: list[Found] = []
        if self._asking is not None and not self._asking.is_alive():  # also in a process forked since
            with contextlib.suppress(Exception) if ask else contextlib.nullcontext():  # asked again, and that tells
                asked, self._asking = self._asking, None
                found += asked.found()
        if self._asking is None and ask:
            self._asking = _Asking(self._ask, self._name)
            self._asking.start()
        if self._asking is None:
            return found
        self._asking.join(self._wait_s)
        if not self._asking.is_alive():
            asked, self._asking = self._asking, None
            found += asked.found()
        return found

    @property
    def is_open(self) -> bool:
        """True if a question was asked and its answer was not taken yet."""
        return self._asking is not None

    @property
    def overdue(self) -> bool:
        """True if the newest question has been open for longer than its time limit."""
        return self._asking is not None and time.monotonic() - self._asking.since_s >= (self._wait_s or LOOK_S)


class _Asking(threading.Thread, Generic[Found]):
    """One question. A daemon thread, since nothing ends a system call that hangs."""

    def __init__(self, ask: Callable[[], Found], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.since_s = time.monotonic()
        self._ask = ask
        self._answers: list[Found] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:  # raised again in the thread that asked
            self._error = error

    def found(self) -> list[Found]:
        """Return its answers; none if a fork has cut the thread off.

        Raises:
            Exception: raised by `ask`.
        """
        error, self._error = self._error, None
        if error is None:
            return self._answers
        try:
            raise error
        finally:
            del error  # whose traceback refers to this frame: a circle, which would hold the frames of all callers


def _numeric(where: Sequence[object]) -> str:
    """Return the address of a `getaddrinfo` entry, with its zone."""
    host, zone = str(where[0]), where[3] if len(where) > 3 else 0
    return f"{host}%{zone}" if zone and "%" not in host else host


def _in_order(host: str) -> tuple[int, int, str]:
    """Sort key: IPv4 first, then by number, since a name server may rotate its answers."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.version, int(address), host
