"""Channels, notices, upkeep: what carries a sample between the agent's processes and threads, and what that costs."""

from __future__ import annotations

import errno
import itertools
import select
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_agent.channel import MAX_FRAMES, Channel
from storage_agent.notices import Notices
from storage_agent.upkeep import Upkeep


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """One end that never waits, as the broker's, and one that does, as a worker's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    pair = Channel(ours), Channel(theirs)
    yield pair
    for end in pair:
        end.close()


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=MAX_FRAMES), max_size=5))
def test_messages_arrive_whole_and_in_order(messages: list[list[bytes]]) -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair())
    try:
        for message in messages:
            theirs.send(message)
        assert [[bytes(frame) for frame in ours.receive() or ()] for _ in messages] == messages
    finally:
        ours.close()
        theirs.close()


def test_the_broker_never_waits_for_half_a_message(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    payload = bytes(range(256)) * 20_000
    writer = threading.Thread(target=theirs.send, args=([b"answer", payload],))
    assert ours.receive() is None
    writer.start()
    while (frames := ours.receive()) is None:
        select.select([ours], [], [], 5.0)
    writer.join(5.0)
    assert [bytes(frame) for frame in frames] == [b"answer", payload]
    assert ours.receive() is None


def test_what_a_worker_does_not_take_is_kept(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    messages = [[b"job", bytes([n]) * 100_000] for n in range(20)]
    for message in messages:
        ours.send(message)
    assert ours.waiting
    for message in messages:
        ours.flush()
        got = theirs.receive()
        while got is None:
            got = theirs.receive()
        assert [bytes(frame) for frame in got] == message
        ours.flush()
    assert not ours.waiting


class _ShortOfMemory:
    """A socket whose kernel has no memory for the first two messages."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.refused = 0

    def sendmsg(self, views: list[memoryview]) -> int:
        if self.refused < 2:
            self.refused += 1
            raise OSError(errno.ENOBUFS, "no buffer space available")
        return self._end.sendmsg(views)


def test_a_kernel_short_of_memory_is_no_death() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        short = _ShortOfMemory(ours)
        Channel(short).send([b"job"])  # type: ignore[arg-type]
        assert short.refused == 2
        assert [bytes(frame) for frame in Channel(theirs).receive() or ()] == [b"job"]


def test_a_closed_end_is_told(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.send([b"last words"])
    theirs.close()
    assert [bytes(frame) for frame in ours.receive() or ()] == [b"last words"]
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(OSError):
        ours.send([b"job"])


def test_notices_of_many_threads_are_taken_once_each() -> None:
    notices: Notices[int] = Notices()
    count, threads = 2000, 4
    for start in range(threads):
        numbers = range(start * count, (start + 1) * count)
        threading.Thread(target=lambda numbers=numbers: [notices.put(n) for n in numbers]).start()
    taken: list[int] = []
    while len(taken) < threads * count:
        assert select.select([notices], [], [], 5.0)[0]
        taken += notices.take(64)
    assert sorted(taken) == list(range(threads * count))
    for start in range(threads):  # of one thread, in order
        mine = [n for n in taken if n // count == start]
        assert mine == sorted(mine)
    notices.take(1)
    assert not select.select([notices], [], [], 0)[0]
    notices.close()
    notices.put(1)  # a thread that comes too late


def test_upkeep_is_what_work_leaves_over() -> None:
    seconds = itertools.count(step=0.010)  # each look at the clock finds 10 ms more
    upkeep = Upkeep(lambda: next(seconds))
    upkeep.count(5.0)  # the first only starts the clock
    assert upkeep.per_sample_s == 0
    for _ in range(4):
        upkeep.count(0.001)
    assert upkeep.per_sample_s == pytest.approx((0.010 - 4 * 0.001) / 4)
    for _ in range(32):
        upkeep.count(1.0)  # more than there was: never below zero
    assert upkeep.per_sample_s == pytest.approx(0.7 * 0.0015)


def test_a_pause_for_something_else_is_no_upkeep() -> None:
    seconds = itertools.chain([0.0, 10.0], itertools.count(10.004, step=0.032))
    upkeep = Upkeep(lambda: next(seconds))
    for _ in range(1 + 4):
        upkeep.count(0.0)
    assert upkeep.per_sample_s == 0
    for _ in range(32):
        upkeep.count(0.0)
    assert upkeep.per_sample_s == pytest.approx(0.004 / 32)
