"""Reading an agent's announcement piece by piece, from a pipe that a test writes to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.wire import announcement as module
from sophon_loader.wire.announcement import Announcement, Awaited
from tests.support.clocks import FakeClock

SAID = Announcement("tcp://127.0.0.1:5555", {"d": "/d"}, 2, 7)


class Process:
    """What is looked at of a process that starts."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.stdout = os.fdopen(reader, "rb")

    def wait(self) -> int:
        return 3

    def say(self, text: str) -> None:
        os.write(self.writer, text.encode())


@pytest.fixture
def process() -> Iterator[Any]:
    one = Process()
    yield one
    one.stdout.close()


def test_a_line_that_comes_in_pieces(process: Any) -> None:
    awaited, line = Awaited(process), SAID.line()
    assert awaited.heard(0.0) is None
    process.say(line[:9])
    assert awaited.heard(0.0) is None, "without waiting for the rest"
    process.say(line[9:] + "\nand more")
    assert awaited.heard(0.0) == SAID


def test_one_that_ends(process: Any) -> None:
    os.close(process.writer)
    with pytest.raises(AgentUnreachable, match="an agent must start, got one that ended with status 3"):
        Awaited(process).heard(0.0)


def test_one_that_takes_too_long(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    awaited = Awaited(process, timeout_s=9.0)
    clock.now_s += 8.0
    assert awaited.heard(0.0) is None
    clock.now_s += 2.0
    process.say("half")
    with pytest.raises(
        AgentUnreachable, match=r"an agent must start within 9 s, got no whole announcement, but b'half'"
    ):
        awaited.heard(0.0)


def test_one_that_was_in_time_though_nobody_looked(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock))
    awaited = Awaited(process, timeout_s=9.0)
    process.say(SAID.line() + "\n")
    clock.now_s += 100.0
    assert awaited.heard(0.0) == SAID


@pytest.mark.parametrize("line", ["", "3", "{", "{}", "[" * 100_000])
def test_a_line_that_is_none(line: str) -> None:
    with pytest.raises(MalformedMessage, match="an agent must announce itself in a line of JSON"):
        Announcement.parse(line)
