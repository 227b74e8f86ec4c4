"""Who the agents are by a list or a name: the system's resolver is patched, and says what each test has it say."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.client.address import Address
from sophon_loader.routes.roster import MAX_MEMBERS, Question, Resolved
from tests.support.agents import until
from tests.support.held import nothing_more_held, threads_besides

ADDRESS = Address.parse("tcp://agents.svc:5555/imagenet/train")
V4, V6 = socket.AF_INET, socket.AF_INET6


class Names:
    """A patched resolver: takes the place of `socket.getaddrinfo`."""

    def __init__(self) -> None:
        self.answer: Callable[[], list[tuple[int, tuple[Any, ...]]]] = list
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int, *, type: int) -> list[Any]:
        self.asked.append((host, port))
        return [(family, type, 6, "", where) for family, where in self.answer()]

    def say(self, *hosts: str) -> None:
        found = [(V6, (host, 5555, 0, 0)) if ":" in host else (V4, (host, 5555)) for host in hosts]
        self.answer = lambda: found  # type: ignore[assignment,return-value]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made)
    yield made


def _endpoints(roster: Resolved) -> list[str]:
    members = roster.look()
    assert all((one.instance, one.exports) == ("", None) for one in members)
    assert {(one.address.export, one.address.folder) for one in members} <= {("imagenet", "train")}
    return [one.address.endpoint for one in members]


def test_addresses_change(names: Names) -> None:
    roster = Resolved(ADDRESS)
    names.say("10.0.0.9", "10.0.0.10", "::1", "10.0.0.9")
    assert _endpoints(roster) == ["tcp://10.0.0.9:5555", "tcp://10.0.0.10:5555", "tcp://[::1]:5555"]
    names.say("::1", "10.0.0.10", "10.0.0.9")
    assert _endpoints(roster) == ["tcp://10.0.0.9:5555", "tcp://10.0.0.10:5555", "tcp://[::1]:5555"], "one order"
    names.say("10.0.0.11")
    assert _endpoints(roster) == ["tcp://10.0.0.11:5555"]
    assert roster.trouble == "" and names.asked == [("agents.svc", 5555)] * 3


def test_a_zone(names: Names) -> None:
    unix = (int(socket.AF_UNIX), ("x",))
    names.answer = lambda: [(V6, ("fe80::1", 5555, 0, 2)), (V6, ("fe80::2%eth0", 5555, 0, 2)), unix]
    assert _endpoints(Resolved(ADDRESS)) == ["tcp://[fe80::1%2]:5555", "tcp://[fe80::2%eth0]:5555"]


@given(st.lists(st.ip_addresses().map(str), max_size=20, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_answers_does_not_matter(hosts: list[str], random: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        names = Names()
        patch.setattr(socket, "getaddrinfo", names)
        roster = Resolved(ADDRESS)
        names.say(*hosts)
        before = _endpoints(roster)
        assert len(before) == len(hosts)
        names.say(*random.sample(hosts, len(hosts)))
        assert _endpoints(roster) == before


def test_no_more_than_there_may_be(names: Names) -> None:
    names.say(*(f"10.0.{n >> 8}.{n & 255}" for n in range(MAX_MEMBERS + 7)))
    assert len(_endpoints(Resolved(ADDRESS))) == MAX_MEMBERS


@pytest.mark.parametrize("error", [socket.gaierror(-3, "Temporary failure in name resolution"),
                                   UnicodeError("label empty or too long")])  # fmt: skip
def test_what_is_known_stays_while_the_name_cannot_be_looked_up(names: Names, error: Exception) -> None:
    def fail() -> list[Any]:
        raise error

    roster = Resolved(ADDRESS)
    names.answer = fail
    assert _endpoints(roster) == [] and roster.trouble.startswith("'agents.svc' cannot be looked up: ")
    names.say("10.0.0.9")
    assert _endpoints(roster) == ["tcp://10.0.0.9:5555"] and roster.trouble == ""
    names.answer = fail
    assert _endpoints(roster) == ["tcp://10.0.0.9:5555"] and str(error.args[-1]) in roster.trouble


def test_a_dead_name_server(names: Names) -> None:
    """It holds up nobody for longer than the look may take, is asked by one thread, and a late answer counts."""
    answers = threading.Event()

    def wait() -> list[Any]:
        answers.wait(30.0)
        return [(V4, ("10.0.0.9", 5555))]

    roster = Resolved(ADDRESS, wait_s=0.5)
    names.say("10.0.0.8")
    assert _endpoints(roster) == ["tcp://10.0.0.8:5555"]
    names.answer = wait
    threads, begun_s = set(threading.enumerate()), time.monotonic()
    for _ in range(2):
        assert _endpoints(roster) == ["tcp://10.0.0.8:5555"]
        assert roster.trouble == "no name server answers for 'agents.svc'"
        assert len(threads_besides(threads)) == 1
    assert 1.0 <= time.monotonic() - begun_s < 10.0 and len(names.asked) == 2
    answers.set()
    assert _endpoints(roster) == ["tcp://10.0.0.9:5555"] and roster.trouble == ""


def test_a_name_server_that_is_always_too_slow(names: Names) -> None:
    """Each answer comes after the look that asked for it, and is taken by the next one."""

    def slowly() -> list[Any]:
        time.sleep(0.05)
        return [(V4, (f"10.0.0.{len(names.asked)}", 5555))]

    names.answer = slowly
    roster = Resolved(ADDRESS, wait_s=0.0)
    assert _endpoints(roster) == [] and roster.trouble == ""
    until(lambda: _endpoints(roster), "a late answer is taken")
    assert roster.trouble == ""


def test_a_forked_process_asks_anew(names: Names) -> None:
    """A thread that was asking is not there after a fork."""
    answers = threading.Event()

    def wait() -> list[Any]:
        answers.wait(30.0)
        return []

    names.answer = wait
    roster = Resolved(ADDRESS, wait_s=0.01)
    assert _endpoints(roster) == []
    child = os.fork()
    if not child:
        status = 1
        try:
            roster._question._wait_s = 10.0
            names.say("10.0.0.9")
            status = 0 if _endpoints(roster) == ["tcp://10.0.0.9:5555"] else 1
        finally:
            os._exit(status)
    answers.set()
    assert os.waitpid(child, 0)[1] == 0


def test_a_thousand_looks_leave_nothing(names: Names) -> None:
    roster = Resolved(ADDRESS)
    _endpoints(roster)
    with nothing_more_held():
        for n in range(1000):
            names.say(f"10.0.0.{n % 200}")
            assert _endpoints(roster) == [f"tcp://10.0.0.{n % 200}:5555"]


def test_the_system_s_own_resolver() -> None:
    found = [one.address for one in Resolved(Address.parse("tcp://localhost:5555/d")).look()]
    assert {one.endpoint for one in found} <= {"tcp://127.0.0.1:5555", "tcp://[::1]:5555"} and found
    assert [str(one.address) for one in Resolved(Address.parse("tcp://[::1]:7/d")).look()] == ["tcp://[::1]:7/d"]


class Large:
    """Stands for a tensor of a training function."""


def test_what_a_question_got_holds_no_caller() -> None:
    """Also before a garbage collection."""

    def fail() -> None:
        raise OSError("the disk has gone")

    def train(question: Question[None]) -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(OSError):
            question.answers()
        return weakref.ref(large)

    gc.collect()
    gc.disable()
    try:
        assert train(Question(fail, "fails", 5.0))() is None
    finally:
        gc.enable()
