"""Who the agents are at the moment: a name with several addresses, or a folder in which agents announce
themselves (`announced.py`). Looked at again and again; nothing here connects to an agent."""

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
"""How long a look may take, unless told otherwise."""
MAX_MEMBERS = 1000
Found = TypeVar("Found")


@dataclass(frozen=True)
class Member:
    """An agent that a roster names.

    Args:
        address: with export and folder, without a key.
        instance: what tells the agent from all others, if the roster knows it; "" else. Equal ones are one agent, at
            several addresses.
        exports: what the agent serves, if the roster knows it: not always the address's.
    """

    address: Address
    instance: str = ""
    exports: tuple[str, ...] | None = None


def able(members: Sequence[Member]) -> list[Member]:
    """Those that serve the export that they are asked for, as far as is known."""
    return [one for one in members if one.exports is None or one.address.export in one.exports]


def of_other_exports(members: Sequence[Member]) -> str:
    """Why none of these is `able`."""
    names = sorted({name for one in members for name in one.exports or ()})
    export = members[0].address.export if members else ""
    return f"no agent that is announced serves {export!r}; they serve {', '.join(names[:8])}"


class Roster(Protocol):
    """Used by one thread.

    Attributes:
        trouble: why the last look has found nothing new, or nothing; "" if all is well.
        met: agents that are used, or tried; where more are named than can be read, those are found all the same.
    """

    trouble: str
    met: Collection[Address]

    def look(self, *, ask: bool = True) -> Sequence[Member]:
        """Who the agents are now. Where that cannot be found out, those of the last time, and `trouble` says why.

        Args:
            ask: whether to look anew; False to take what has been found since, where looks are not waited for.
        """
        ...

    @property
    def is_looking(self) -> bool:
        """Whether a look has begun, and what it has found has yet to be taken."""
        ...


class Resolved:
    """All addresses that a name has, of both families, as a headless Service of Kubernetes has one for each agent.

    Args:
        address: whose host is looked up anew at each look.
        wait_s: how long a look may take; 0 not to wait, but take what has been found since the last look.

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
        """The name's addresses now; those of the last time while no name server answers, or it knows none."""
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
        """As of `Roster`."""
        return self._question.is_open

    def _look_up(self) -> list[str]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        hosts = {_numeric(where) for family, *_, where in found if family in (socket.AF_INET, socket.AF_INET6)}
        in_order = sorted(hosts, key=_in_order)[:MAX_MEMBERS]
        return [f"tcp://{f'[{host}]' if ':' in host else host}:{self._port}" for host in in_order]


class Question(Generic[Found]):
    """A question that may never be answered, asked by a thread of its own, one at a time.

    Args:
        ask: called by the thread.
        name: of the thread.
        wait_s: how long `answers` may take; 0 not to wait.
    """

    def __init__(self, ask: Callable[[], Found], name: str, wait_s: float) -> None:
        self._ask = ask
        self._name = name
        self._wait_s = wait_s
        self._asking: _Asking[Found] | None = None

    def answers(self, *, ask: bool = True) -> list[Found]:
        """What has been found out since the last call, oldest first: at most a late answer, and the one to a question
        asked now; neither where there is no answer within `wait_s`.

        Args:
            ask: whether to ask anew.

        Raises:
            Exception: what `ask` raised now.
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
        """Whether a question has been asked whose answer has not been taken."""
        return self._asking is not None

    @property
    def overdue(self) -> bool:
        """Whether the question asked last has been open for longer than it may."""
        return self._asking is not None and time.monotonic() - self._asking.since_s >= (self._wait_s or LOOK_S)


class _Asking(threading.Thread, Generic[Found]):
    """One question. A daemon, since nothing ends a system call that hangs."""

    def __init__(self, ask: Callable[[], Found], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.since_s = time.monotonic()
        self._ask = ask
        self._answers: list[Found] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as error:  # told by the thread that asked
            self._error = error

    def found(self) -> list[Found]:
        """Its answer; none if it has been cut off by a fork.

        Raises:
            Exception: what it got instead.
        """
        error, self._error = self._error, None
        if error is None:
            return self._answers
        try:
            raise error
        finally:
            del error  # whose traceback refers to this frame: a circle, which would hold the frames of all callers


def _numeric(where: Sequence[object]) -> str:
    """The address of a `getaddrinfo` entry, with its zone."""
    host, zone = str(where[0]), where[3] if len(where) > 3 else 0
    return f"{host}%{zone}" if zone and "%" not in host else host


def _in_order(host: str) -> tuple[int, int, str]:
    """IPv4 first, by number: a name server may turn its answers at each question."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return address.version, int(address), host
