"""Channels, notices, upkeep: what carries a sample between the agent's processes and threads, and what that costs."""

from __future__ import annotations

import errno
import itertools
import select
import socket
import threading
from collections.abc import Iterable, Iterator

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from storage_agent.broker.notices import Notices
from storage_agent.host.channel import MAX_FRAMES, MAX_PAUSES, Channel
from storage_agent.jobs.upkeep import Upkeep
from storage_agent.workers.lines import Lines


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


@given(st.lists(st.integers(0, 3 * (1 << 16)), min_size=1, max_size=8), st.integers(0, 8))
def test_parts_of_any_size_share_what_is_received_at_once(sizes: list[int], small: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(5.0)
        channel, sent = Channel(ours), [[bytes([n]) * size, b"x" * small] for n, size in enumerate(sizes)]

        def send() -> None:
            for message in sent:
                Channel(theirs).send(message)

        writer = threading.Thread(target=send)
        writer.start()
        received: list[list[bytes]] = []
        while len(received) < len(sent):
            assert channel._unread or select.select([ours], [], [], 5.0)[0], "what was drained has nothing more"
            while (frames := channel.receive()) is not None:
                received.append([bytes(frame) for frame in frames])
                if channel.drained:
                    break
        writer.join(5.0)
        assert received == sent


def test_what_is_put_goes_out_by_one_call_and_is_at_hand_together(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    for n in range(3):
        theirs.put([b"answer", bytes([n])])
    assert theirs.waiting and ours.receive() is None, "nothing goes out before"
    theirs.flush()
    first = ours.receive()
    assert not theirs.waiting and first is not None and [bytes(frame) for frame in first] == [b"answer", b"\0"]
    assert [bytes((ours.at_hand() or [b""])[-1]) for _ in range(3)] == [b"\1", b"\2", b""]


def test_half_a_message_is_not_at_hand(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.put([b"first"])
    theirs.put([b"second", bytes(100_000)])
    theirs.flush()
    assert [bytes(frame) for frame in ours.receive() or ()] == [b"first"]
    assert ours.at_hand() is None
    assert [len(frame) for frame in ours.receive() or ()] == [6, 100_000]


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
    """A socket whose kernel has no memory for the first messages."""

    def __init__(self, end: socket.socket, times: int) -> None:
        self._end = end
        self.left = times

    def getblocking(self) -> bool:
        return self._end.getblocking()

    def sendmsg(self, views: list[memoryview]) -> int:
        if self.left:
            self.left -= 1
            raise OSError(errno.ENOBUFS, "no buffer space available")
        return self._end.sendmsg(views)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was slept, without sleeping."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    return slept


def test_a_worker_waits_for_a_kernel_short_of_memory(pauses: list[float]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(_ShortOfMemory(ours, 2)).send([b"answer"])  # type: ignore[arg-type]
        assert [bytes(frame) for frame in Channel(theirs).receive() or ()] == [b"answer"]
        assert len(pauses) == 2


def test_a_worker_does_not_wait_for_ever(pauses: list[float]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(OSError, match="no buffer space"):
        Channel(_ShortOfMemory(ours, MAX_PAUSES + 1)).send([b"answer"])  # type: ignore[arg-type]
    assert len(pauses) == MAX_PAUSES and sum(pauses) <= 10.0


def test_the_broker_pauses_once_and_comes_back(pauses: list[float]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        channel = Channel(_ShortOfMemory(ours, 2))  # type: ignore[arg-type]
        channel.send([b"job"])
        assert channel.waiting and len(pauses) == 1
        channel.flush()
        assert channel.waiting and len(pauses) == 2
        channel.flush()
        assert not channel.waiting and [bytes(frame) for frame in Channel(theirs).receive() or ()] == [b"job"]


def test_a_closed_end_is_told(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    theirs.send([b"last words"])
    theirs.close()
    assert [bytes(frame) for frame in ours.receive() or ()] == [b"last words"]
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(OSError):
        ours.send([b"job"])


# --- lines ----------------------------------------------------------------------------------------------------


@pytest.fixture
def line() -> Iterator[tuple[Lines, zmq.Poller, socket.socket]]:
    """The line to worker 7, what watches it, and the worker's end, which does not wait either."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    poller = zmq.Poller()
    lines = Lines(poller)
    lines.open(7, Channel(ours))
    yield lines, poller, theirs
    lines.close_all()
    theirs.close()


def _received(lines: Lines, event: int = zmq.POLLIN, most: int = 9) -> tuple[list[list[bytes]], bool]:
    messages, there = lines.receive(7, event, most=most)
    return [[bytes(frame) for frame in message] for message in messages], there


def _events(lines: Lines, poller: zmq.Poller) -> list[tuple[int, int]]:
    return lines.ready(dict(poller.poll(0)))


def test_a_line_carries_messages(line: tuple[Lines, zmq.Poller, socket.socket]) -> None:
    lines, poller, theirs = line
    worker = Channel(theirs)
    assert _events(lines, poller) == []
    lines.put(7, [b"job"])
    assert worker.receive() is None, "not yet"
    lines.flush()
    assert [bytes(frame) for frame in worker.receive() or ()] == [b"job"]
    for n in range(3):
        worker.send([b"answer", b"%d" % n])
    assert _events(lines, poller) == [(7, zmq.POLLIN)]
    assert _received(lines, most=2) == ([[b"answer", b"0"], [b"answer", b"1"]], True)
    assert _received(lines, most=2) == ([[b"answer", b"2"]], True)


def test_a_line_sends_what_it_kept_when_there_is_room(line: tuple[Lines, zmq.Poller, socket.socket]) -> None:
    lines, poller, theirs = line
    worker, payload = Channel(theirs), bytes(1 << 20)
    lines.put(7, [b"learn", payload])
    lines.flush()
    assert _events(lines, poller) == [], "no room"
    heard = None
    while heard is None:
        heard = worker.receive()
        for number, event in _events(lines, poller):
            lines.receive(number, event, most=9)
    assert [bytes(frame) for frame in heard] == [b"learn", payload]
    assert _events(lines, poller) == [], "room does not matter when nothing is kept"


def test_a_worker_that_hangs_up_after_its_last_words(line: tuple[Lines, zmq.Poller, socket.socket]) -> None:
    lines, poller, theirs = line
    Channel(theirs).send([b"answer"])
    theirs.close()
    ((_, event),) = _events(lines, poller)
    assert _received(lines, event) == ([[b"answer"]], True)
    ((_, event),) = _events(lines, poller)
    assert _received(lines, event) == ([], False), "told by the poller, without which nobody asks a drained channel"
    assert _events(lines, poller) == [] and _received(lines) == ([], False)
    lines.put(7, [b"job"])  # nobody hears it, and nothing happens
    lines.flush()


def test_half_a_message_of_a_dead_worker_is_dropped(line: tuple[Lines, zmq.Poller, socket.socket]) -> None:
    lines, poller, theirs = line
    theirs.send(b"half a head")
    assert _received(lines) == ([], True)
    lines.close(7)
    lines.close(7)
    assert _events(lines, poller) == [] and theirs.recv(1) == b""


# --- notices --------------------------------------------------------------------------------------------------


def test_notices_of_many_threads_are_taken_once_each() -> None:
    notices: Notices[int] = Notices()
    count, threads = 2000, 4

    def put_all(numbers: Iterable[int]) -> None:
        for number in numbers:
            notices.put(number)

    for start in range(threads):
        threading.Thread(target=put_all, args=(range(start * count, (start + 1) * count),)).start()
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
        upkeep.count(0.0001)
    assert upkeep.per_sample_s == pytest.approx((0.010 - 32 * 0.0001) / 32), "the first few were those of a cold start"
    for _ in range(32):
        upkeep.count(1.0)  # more than there was: never below zero
    assert upkeep.per_sample_s == pytest.approx(0.7 * (0.010 - 32 * 0.0001) / 32)


def test_a_pause_for_something_else_is_no_upkeep() -> None:
    seconds = itertools.chain([0.0, 10.0], itertools.count(10.004, step=0.032))
    upkeep = Upkeep(lambda: next(seconds))
    for _ in range(1 + 4):
        upkeep.count(0.0)
    assert upkeep.per_sample_s == 0
    for _ in range(32):
        upkeep.count(0.0)
    assert upkeep.per_sample_s == pytest.approx(0.004 / 32)
