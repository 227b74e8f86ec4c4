"""How many samples are on their way: a model of a way of known rate and length, and a clock that is a number."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.requests import Requests
from sophon_loader.client.wanted import Ask, BatchId, Instruction, Wanted
from sophon_loader.client.window import FLOOR, RequestWindow
from tests.support import drawn
from tests.support.drawn import examples
from tests.support.loaders import sample_message

OPTIONS = OffloadOptions()
ZEROS = memoryview(bytes(1 << 20))
MBIT = 1e6 / 8
FULL = 0.97
"""Share of what a way could bring, or a loader could take, that counts as all of it."""


@dataclass
class Way:
    """An agent far away: a reply takes `round_trip_s`, and replies follow one another at `rate` bytes/s."""

    rate: float
    round_trip_s: float
    sizes: Sequence[int]
    arrivals: deque[tuple[float, int, int]] = field(default_factory=deque)
    free_s: float = 0.0
    asked: int = 0

    def ask(self, instructions: Sequence[Instruction], now_s: float) -> None:
        for ask in instructions:
            assert isinstance(ask, Ask)
            for number, _ in ask.items:
                nbytes = self.sizes[self.asked % len(self.sizes)]
                self.asked += 1
                self.free_s = max(now_s + self.round_trip_s, self.free_s) + nbytes / self.rate
                self.arrivals.append((self.free_s, number, nbytes))


class Worker:
    """Loads batches over a way, as workers/dataset.py does.

    Args:
        way: to the agent.
        options: of the window.
        batch_size: samples per batch.
        ahead: batches beyond the current one that torch has handed out.
        cpu_s: what finishing a sample takes.
    """

    def __init__(
        self, way: Way, options: OffloadOptions = OPTIONS, batch_size: int = 16, ahead: int = 64, cpu_s: float = 0.0
    ) -> None:
        self.way, self.ahead, self.batch_size, self.cpu_s = way, ahead, batch_size, cpu_s
        self.requests = Requests(options, "1", 0.0)
        self.now_s = 0.0
        self.batches = 0
        self.times: list[float] = []
        """When each sample had been finished."""
        self.most = self.starved = self.waits = 0
        """Samples on their way, at most; waits for a reply, and those in which more could have been asked for."""

    def load(self, batches: int, until: int) -> None:
        """Some batches of an epoch that has `until`."""
        for _ in range(batches):
            batch = self.batches
            last = min(until, batch + self.ahead + 1)
            self.requests.drop(keep=[_id(number) for number in range(batch, last)])
            self._want(batch)
            for _ in range(self.batch_size):
                unknown = [number for number in range(batch + 1, last) if not self.requests.knows(_id(number))]
                for number in unknown:
                    if len(unknown) < last - batch - 1 and not self.requests.wants_more:
                        break
                    self._want(number)
                self._next(_id(batch))
            self.batches += 1

    def _want(self, number: int) -> None:
        first = number * self.batch_size
        wanted = [Wanted(0, first + n, 1, "pixels", "key") for n in range(self.batch_size)]
        self._do(self.requests.want(_id(number), wanted, self.now_s))

    def _next(self, batch: BatchId) -> None:
        while self.requests.ready(batch) is None:
            self.receive()
        self.now_s += self.cpu_s
        self.times.append(self.now_s)

    def receive(self) -> None:
        at_s, number, nbytes = self.way.arrivals.popleft()
        if at_s > self.now_s:
            self.waits += 1
            self.starved += self.requests.starved
        self.now_s = max(self.now_s, at_s)
        self._do(self.requests.receive(sample_message(number), ZEROS[:nbytes], self.now_s))

    def _do(self, instructions: Sequence[Instruction]) -> None:
        self.way.ask(instructions, self.now_s)
        self.most = max(self.most, len(self.requests._asked))

    def samples_s(self) -> float:
        """Over the second half of the samples."""
        half = len(self.times) // 2
        return (len(self.times) - half) / (self.times[-1] - self.times[half - 1])


@cache
def _id(number: int) -> BatchId:
    return BatchId(1, 0, number)


# --- as much as the way takes, and no more ----------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [42_000, 108_000])
@pytest.mark.parametrize("round_trip_s", [0.0002, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("mbit", [10, 100, 1000])
def test_the_way_is_full_and_no_more_than_twice(mbit: float, round_trip_s: float, nbytes: int) -> None:
    worker = Worker(Way(mbit * MBIT, round_trip_s, [nbytes]))
    worker.load(200 if drawn.FULL else 100, 300)
    assert worker.samples_s() >= FULL * mbit * MBIT / nbytes
    on_the_way = mbit * MBIT * round_trip_s / nbytes + 1  # and the one whose reply is measured
    assert worker.most <= min(max(FLOOR, math.ceil(2 * on_the_way)), OPTIONS.window)
    assert worker.starved <= 0.05 * worker.waits


def test_a_long_way_is_full_after_a_few_round_trips() -> None:
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]))
    while worker.most < 298:
        worker.load(1, 100)
    assert worker.now_s <= 0.6


@pytest.mark.parametrize(("cpu_s", "round_trip_s"), [(0.002, 0.001), (0.002, 0.1), (0.001, 0.2), (0.02, 0.1)])
def test_a_loader_that_takes_no_more_is_sent_no_more(cpu_s: float, round_trip_s: float) -> None:
    worker = Worker(Way(1e12, round_trip_s, [42_000]), cpu_s=cpu_s)
    worker.load(250, 250)
    assert worker.samples_s() >= FULL / cpu_s
    # The first window comes within a round trip and is taken faster than it could be asked for again.
    assert worker.most <= max(FLOOR, 2.1 * (round_trip_s / cpu_s + 1), 2 * FLOOR)


def test_a_wire_that_becomes_slower_gets_less() -> None:
    way = Way(1000 * MBIT, 0.1, [42_000])
    worker = Worker(way)
    worker.load(150, 600)
    assert worker.most > 400
    way.rate /= 20
    worker.load(300, 600)
    worker.most = 0
    worker.load(50, 600)
    assert worker.most == FLOOR


def test_smaller_samples_are_more_of_them_at_once() -> None:
    way = Way(100 * MBIT, 0.1, [110_000])
    worker = Worker(way)
    worker.load(50, 400)
    assert worker.most == FLOOR
    way.sizes = [8_000]
    worker.load(200, 400)
    assert 250 < worker.most <= 320
    assert (len(worker.times) - 2000) / (worker.times[-1] - worker.times[1999]) >= FULL * 100 * MBIT / 8_000


def test_an_epoch_that_begins_knows_the_way() -> None:
    """A worker that persists has nothing to learn again; the way is empty in between."""
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]))
    worker.load(100, 100)
    before_s, worker.now_s, worker.most = worker.now_s, worker.now_s + 5.0, 0
    worker.load(100, 200)
    took_s = worker.now_s - before_s - 5.0
    assert took_s <= (1600 * 42_000 / (1000 * MBIT) + 0.1) / FULL


# --- limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3, 100, 200])
def test_there_are_never_more_samples_than_allowed(window: int) -> None:
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]), replace(OPTIONS, window=window))
    worker.load(60, 60)
    assert worker.most == window


@pytest.mark.parametrize("most_nbytes", [1, 42_000, 1_000_000, 5_000_000])
def test_there_are_never_more_bytes_than_allowed(most_nbytes: int) -> None:
    """Not even if the first sample of a batch is the last one to come, and all others lie and wait for it."""
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]), replace(OPTIONS, window_nbytes=most_nbytes))
    requests = worker.requests
    worker.load(8, 100)  # by now it is known how large a sample is
    worker._want(8)
    for number in range(9, 60):
        worker._want(number)
    late = next(number for number, one in requests._requests.items() if one.batch == _id(8) and one.position == 0)
    while worker.way.arrivals:
        worker.way.arrivals = deque(sorted(worker.way.arrivals, key=lambda one: one[1] == late))
        if worker.way.arrivals[0][1] == late:
            break
        worker.receive()
        assert len(requests._asked) * 42_000 + requests._held_nbytes <= max(most_nbytes, 42_000)
    assert requests._held_nbytes <= most_nbytes
    worker.load(52, 100)
    assert len(worker.times) == 60 * 16


def test_what_lies_here_is_counted_until_it_is_taken_or_dropped() -> None:
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]))
    worker._want(0)
    worker._want(1)
    for _ in range(20):
        worker.receive()
    assert worker.requests._held_nbytes == 20 * 42_000
    worker.requests.ready(_id(0))
    assert worker.requests._held_nbytes == 19 * 42_000
    worker.requests.drop(keep=[_id(1)])
    assert worker.requests._held_nbytes == 4 * 42_000
    worker.requests.drop(keep=[])
    assert worker.requests._held_nbytes == 0


@examples(200)
@given(
    phases=st.lists(
        st.tuples(
            st.floats(1e4, 1e9),
            st.floats(1e-4, 1.0),
            st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5),
            st.integers(1, 6),
            st.sampled_from([0.0, 0.0005, 0.1]),
        ),
        min_size=1,
        max_size=4,
    ),
    window=st.integers(1, 600),
    window_nbytes=st.integers(1, 64 << 20),
    batch_size=st.integers(1, 40),
    ahead=st.integers(0, 30),
)
def test_whatever_the_way_is_all_samples_come_and_the_limits_hold(
    phases: list[tuple[float, float, list[int], int, float]],
    window: int,
    window_nbytes: int,
    batch_size: int,
    ahead: int,
) -> None:
    options = OffloadOptions(window=window, window_nbytes=window_nbytes)
    until = sum(phase[3] for phase in phases)
    worker = Worker(Way(1, 0.0, [1]), options, batch_size, ahead)
    for rate, round_trip_s, sizes, batches, cpu_s in phases:
        worker.way.rate, worker.way.round_trip_s, worker.way.sizes, worker.cpu_s = rate, round_trip_s, sizes, cpu_s
        worker.load(batches, until)
    assert len(worker.times) == batch_size * until == worker.way.asked
    assert worker.most <= window
    assert worker.requests._held_nbytes == 0 and not worker.requests._asked


# --- a look-ahead that is too short -------------------------------------------------------------------------------


def test_waits_with_nothing_more_to_ask_for_count_as_starved() -> None:
    worker = Worker(Way(1000 * MBIT, 0.1, [42_000]), batch_size=4, ahead=1)
    worker.load(50, 60)
    assert worker.starved >= 0.9 * worker.waits


@pytest.mark.parametrize(("mbit", "round_trip_s"), [(100, 0.001), (100, 0.01), (10, 0.1)])
def test_a_short_look_ahead_that_fills_the_wire_starves_nobody(mbit: float, round_trip_s: float) -> None:
    worker = Worker(Way(mbit * MBIT, round_trip_s, [42_000]), batch_size=16, ahead=1)
    worker.load(50, 60)
    assert worker.samples_s() >= FULL * mbit * MBIT / 42_000
    assert worker.starved <= 0.1 * worker.waits


# --- what is measured ---------------------------------------------------------------------------------------------


def test_a_queue_at_the_agent_is_not_a_long_way() -> None:
    window = RequestWindow(512, 32 << 20)
    for step in range(1000):
        mark = window.asked(63, now_s=0.01 * step)
        window.answered(mark, 1000, queued_s=0.63, now_s=0.01 * step + 0.64)
    assert window.round_trip_s == pytest.approx(0.01)
    assert window.samples(0) == FLOOR and window.queues


def test_a_reply_to_a_repeated_request_says_nothing_about_the_way() -> None:
    window = RequestWindow(512, 32 << 20)
    window.answered(window.asked(0, 0.0), 1000, 0.0, 0.1)
    rate = window.rate
    window.answered(window.asked(5, 40.0, again=True), 1000, 0.0, 40.0001)
    assert (window.round_trip_s, window.rate) == (0.1, rate)


def test_a_sample_that_was_asked_for_again_is_marked_so() -> None:
    requests = Requests(OPTIONS, "1", 0.0)
    requests.want(_id(0), [Wanted(0, 0, 1, "pixels", "key")], 0.0)
    requests.reconnected(31.0)
    (mark,) = requests._asked.values()
    assert mark.again and mark.asked_s > 30


def test_what_had_gathered_during_a_pause_did_not_come_at_once() -> None:
    """64 samples lie in the socket when the worker comes back after a second, and it takes them in a millisecond."""
    window = RequestWindow(512, 32 << 20)
    marks = [window.asked(n, 0.0) for n in range(64)]
    window.answered(marks.pop(), 1000, 0.0, 0.01)
    late = window.asked(63, 1.0)
    for n, mark in enumerate(marks):
        window.answered(mark, 1000, 0.0, 1.0 + 1e-5 * n)
    window.answered(late, 1000, 0.0, 1.01)
    assert window.rate == pytest.approx(100_000), "of the first one, and not of 64 in 0.01 s"
    assert window.samples(0) == FLOOR


def test_a_longer_way_is_followed_once_nothing_is_on_it() -> None:
    window = RequestWindow(512, 32 << 20)
    for n in range(100):
        window.answered(window.asked(0, 0.1 * n), 1000, 0.0, 0.1 * n + 0.01)
    window.answered(window.asked(0, 30.0), 1000, 0.0, 30.2)
    assert window.round_trip_s == pytest.approx(0.01), "too soon: one slow reply is no longer way"
    window.answered(window.asked(3, 80.0), 1000, 0.0, 80.2)
    assert window.round_trip_s == pytest.approx(0.01), "others are on the way, and may be why it took so long"
    mark = window.asked(0, 90.0)
    assert window.samples(0) == FLOOR, "as before the first reply"
    window.answered(mark, 1000, 0.0, 90.2)
    assert window.round_trip_s == pytest.approx(0.2)


def test_samples_without_any_bytes_divide_nothing() -> None:
    window = RequestWindow(512, 1)
    for n in range(5):
        window.answered(window.asked(0, float(n)), 0, 0.0, n + 0.5)
    assert window.samples(0) == FLOOR
