"""What the four resources can do: the step clock, the burst over the wire, and what an epoch corrects."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.decide.facts import Rates
from sophon_loader.errors import AgentUnreachable
from sophon_loader.profiling import rates as module
from sophon_loader.profiling.rates import WINDOW_STEPS, EpochMeasure, StepClock, measure_wire, revised, wire_may_do_more
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Sample


class FakeClock:
    """A clock that stands still until told otherwise."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


# --- the step clock -------------------------------------------------------------------------------------------


def steps(clock: FakeClock, step: StepClock, count: int, seconds: float, samples: int = 8, load_s: float = 5.0) -> None:
    """Some batches: each is loaded for `load_s` and worked on for `seconds`."""
    for _ in range(count):
        clock.now_s += load_s
        step.step_starts()
        clock.now_s += seconds
        step.step_ends(samples)


def test_the_rate_is_that_of_the_step_and_not_of_loading() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 10, 0.25, samples=8)
    assert step.samples_s == pytest.approx(32)


def test_before_three_steps_nothing_is_known() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    for _ in range(2):
        steps(clock, step, 1, 9.0)
        assert step.samples_s == math.inf
    steps(clock, step, 1, 0.5)
    assert step.samples_s == pytest.approx(16), "the first two, in which things warm up, do not count"


def test_steps_without_duration_are_no_limit() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 20, 0.0)
    assert step.samples_s == math.inf


def test_batches_without_samples_are_no_limit() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 9, 0.5, samples=0)
    assert step.samples_s == math.inf


def test_a_single_slow_step_does_not_count() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 10, 0.25)
    steps(clock, step, 1, 600.0)
    assert step.samples_s == pytest.approx(32)


def test_what_comes_between_epochs_is_no_step() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 5, 0.25)
    for _ in range(9):
        step.step_starts()
        step.pause()
        clock.now_s += 1000.0
        step.step_ends(8)
    assert step.samples_s == pytest.approx(32)
    step.step_ends(8)
    assert step.samples_s == pytest.approx(32), "an end without a start"


def test_the_window_closes_and_the_newest_steps_count() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    assert step.in_window
    steps(clock, step, WINDOW_STEPS + 1, 0.5)
    assert step.in_window
    steps(clock, step, 1, 0.5)
    assert not step.in_window
    steps(clock, step, 4 * WINDOW_STEPS, 0.125)
    assert step.samples_s == pytest.approx(64), "the old ones are forgotten"
    assert len(step._steps_s) == len(step._sizes) <= 2 * WINDOW_STEPS


def test_on_a_gpu_only_the_window_is_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, synchronised = FakeClock(), []

    def synchronise() -> None:
        clock.now_s += 1.0  # the kernels that were still running
        synchronised.append(1)

    monkeypatch.setattr(module.torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "synchronize", synchronise)
    step = StepClock(clock)
    steps(clock, step, WINDOW_STEPS + 2, 0.0)
    assert len(synchronised) == WINDOW_STEPS + 2
    steps(clock, step, 50, 0.0)
    assert len(synchronised) == WINDOW_STEPS + 2
    assert step.samples_s == pytest.approx(8), "a step that only queues its kernels is none"


# --- the wire -------------------------------------------------------------------------------------------------


class WireStandIn:
    """Stands in for a Connection: a wire of known latency and rate, on a clock that it moves itself.

    Args:
        rate: bytes/s; 0 for an agent that never answers.
        failing: numbers of requests that are answered by Failed.
    """

    def __init__(self, clock: FakeClock, rate: float, latency_s: float, nbytes: int, failing: Any = ()) -> None:
        self.address = Address.parse("tcp://127.0.0.1:1/d")
        self.most_outstanding = self.sent = 0
        self.asked_keys: list[str] = []
        self._clock, self._rate, self._latency_s, self._nbytes = clock, rate, latency_s, nbytes
        self._failing = failing
        self._free_s = 0.0
        self._arrivals: deque[tuple[float, Message, bytes]] = deque()

    def send(self, message: Message) -> None:
        assert isinstance(message, Fetch)
        (item,) = message.items
        self.asked_keys.append(item.key)
        self.sent += 1
        if not self._rate:
            return
        if self.sent in self._failing:
            self._arrivals.append((self._clock.now_s + self._latency_s, Failed(Failure.MISSING, "no", [item.id]), b""))
        else:
            start_s = max(self._clock.now_s + self._latency_s, self._free_s)
            self._free_s = start_s + self._nbytes / self._rate
            sample = Sample(item.id, 0, "file", {}, self._nbytes, [0.0], 0.0, 0.0, "")
            self._arrivals.append((self._free_s, sample, bytes(self._nbytes)))
        self.most_outstanding = max(self.most_outstanding, len(self._arrivals))

    def receive(self, timeout_s: float) -> tuple[Message, bytes] | None:
        if not self._arrivals or self._arrivals[0][0] > self._clock.now_s + timeout_s:
            self._clock.now_s += timeout_s
            return None
        arrived_s, message, payload = self._arrivals.popleft()
        self._clock.now_s = max(self._clock.now_s, arrived_s)
        return message, payload


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock()
    monkeypatch.setattr(module.time, "perf_counter", found)
    return found


@pytest.mark.parametrize("latency_s", [0.0001, 0.02, 0.1])
@pytest.mark.parametrize("rate", [100e3, 5e6, 12.5e6, 300e6])
def test_the_burst_finds_the_rate_of_a_wire(clock: FakeClock, rate: float, latency_s: float) -> None:
    wire = WireStandIn(clock, rate, latency_s, 20_000)
    found = measure_wire(wire, [f"k{n}" for n in range(5)], window=64)  # type: ignore[arg-type]
    assert clock.now_s - 100.0 < 2.5
    assert wire.most_outstanding <= 64
    assert found <= 1.01 * rate
    if rate * latency_s < 5e5:  # else the window, rightly, is what limits
        assert found >= 0.5 * rate
    assert set(wire.asked_keys) <= {f"k{n}" for n in range(5)}


def test_little_is_left_on_a_slow_wire(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 1e6, 0.001, 100_000)
    measure_wire(wire, ["k"], window=64)  # type: ignore[arg-type]
    assert wire.most_outstanding <= 4


def test_an_agent_that_answers_nothing(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 0, 0.0, 1000)
    with pytest.raises(AgentUnreachable, match="must send files, got none"):
        measure_wire(wire, ["k"], window=8)  # type: ignore[arg-type]
    assert clock.now_s - 100.0 < 5


def test_files_that_are_missing_count_as_nothing(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 10e6, 0.001, 50_000, failing=range(2, 10_000, 2))
    assert 1e6 < measure_wire(wire, ["a", "b"], window=8) <= 10.1e6  # type: ignore[arg-type]


def test_a_single_file_that_comes_makes_a_rate_above_zero(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 10e6, 0.001, 50_000, failing=range(2, 10_000))
    assert measure_wire(wire, ["a", "b"], window=8) > 0  # type: ignore[arg-type]


# --- what an epoch corrects -----------------------------------------------------------------------------------

BEFORE = Rates(gpu_samples_s=math.inf, wire_bytes_s=10e6, loader_cores=2.0, agent_cores=4.0)
EPOCH = EpochMeasure(
    seconds=10.0,
    samples=1000,
    wire_bytes=50e6,
    loader_cpu_s=8.0,
    agent_cpu_s=6.0,
    gpu_samples_s=500.0,
    waiting=0.0,
    queueing=0.0,
)
SEEN = replace(BEFORE, gpu_samples_s=500.0)

IDLE = replace(SEEN, loader_cores=0.8)
"""The loader waited for nothing: what it did in these seconds is what it can."""
HELD_UP = {"gpu_samples_s": 120.0}
"""The training step takes 8.3 of the 10 seconds."""

CASES: dict[str, tuple[Rates, dict[str, Any], Rates]] = {
    "nothing held the loader up": (BEFORE, {}, IDLE),
    "it waited a little": (BEFORE, {"waiting": 0.2}, replace(SEEN, loader_cores=1.0)),
    "the training step held it up": (BEFORE, HELD_UP, replace(BEFORE, **HELD_UP)),
    "wire-bound: the wire ran at its rate": (BEFORE, {"waiting": 0.8}, replace(SEEN, wire_bytes_s=5e6)),
    "it waited for a part, on a wire with room": (BEFORE, {"waiting": 0.5}, replace(SEEN, loader_cores=1.6)),
    "it waited for a part, on a wire near its limit": (
        BEFORE,
        {"waiting": 0.5, "wire_bytes": 95e6},
        replace(SEEN, loader_cores=1.6, wire_bytes_s=9.5e6),
    ),
    "wire-bound, never measured": (
        replace(BEFORE, wire_bytes_s=math.inf),
        {"waiting": 0.8},
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "agent-bound by queueing": (
        BEFORE,
        {"waiting": 0.8, "queueing": 0.9},
        replace(SEEN, agent_cores=0.6),
    ),
    "queueing without waiting is nobody's limit": (BEFORE, {"queueing": 0.9}, IDLE),
    "loader-bound": (BEFORE, {"loader_cpu_s": 19.0, "waiting": 0.1}, replace(SEEN, loader_cores=19 / 9)),
    "a loader past its rate": (BEFORE, {"loader_cpu_s": 40.0}, replace(SEEN, loader_cores=4.0)),
    "a loader that waited is left alone": (BEFORE, {"waiting": 0.8, "loader_cpu_s": 1.0, "wire_bytes": 100e6}, SEEN),
    "the wire brought more than its rate allows": (
        BEFORE,
        {"wire_bytes": 200e6, **HELD_UP},
        replace(BEFORE, wire_bytes_s=20e6, **HELD_UP),
    ),
    "the agent did more than its rate allows": (
        BEFORE,
        {"agent_cpu_s": 80.0, **HELD_UP},
        replace(BEFORE, agent_cores=8.0, **HELD_UP),
    ),
    "too few steps to know what held it up": (BEFORE, {"gpu_samples_s": math.inf}, BEFORE),
    "an epoch of no samples": (BEFORE, {"samples": 0, "waiting": 1.0}, BEFORE),
    "an epoch of no time": (BEFORE, {"seconds": 0.0, "waiting": 1.0}, BEFORE),
    "nothing came over the wire": (BEFORE, {"wire_bytes": 0, "waiting": 0.9}, SEEN),
    "a loader whose clock stood still": (BEFORE, {"loader_cpu_s": 0.0}, SEEN),
    "queueing at an agent whose clock stood still": (
        BEFORE,
        {"agent_cpu_s": 0.0, "waiting": 0.9, "queueing": 0.9},
        SEEN,
    ),
    "the agent's seconds are not a number": (
        BEFORE,
        {"agent_cpu_s": math.nan, "waiting": 0.9, "queueing": 0.9},
        SEEN,
    ),
    "the queue's seconds are not a number": (
        BEFORE,
        {"waiting": 0.9, "queueing": math.nan},
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "the agent's seconds are endless": (BEFORE, {"agent_cpu_s": math.inf, **HELD_UP}, replace(BEFORE, **HELD_UP)),
    "the agent's seconds are negative": (
        BEFORE,
        {"agent_cpu_s": -5.0, "waiting": 0.9, "queueing": 0.9},
        SEEN,
    ),
}


@pytest.mark.parametrize(
    ("known", "changes", "more"),
    [
        (10e6, {"wire_bytes": 120e6}, True),
        (10e6, {"wire_bytes": 105e6}, False),
        (10e6, {"wire_bytes": 120e6, "waiting": 0.5}, True),
        (10e6, {"wire_bytes": 120e6, "waiting": 0.8}, False),  # then that is its rate
        (math.inf, {"wire_bytes": 120e6}, False),  # measured in any case
        (10e6, {"wire_bytes": 0}, False),
    ],
)
def test_a_wire_that_did_more_than_was_known_may_do_more_still(
    known: float, changes: dict[str, Any], more: bool
) -> None:
    before, epoch = replace(BEFORE, wire_bytes_s=known), replace(EPOCH, **changes)
    assert wire_may_do_more(before, revised(before, epoch), epoch) is more


@pytest.mark.parametrize("case", CASES)
def test_what_an_epoch_says_of_the_rates(case: str) -> None:
    before, changes, after = CASES[case]
    found = revised(before, replace(EPOCH, **changes))
    for name in ("gpu_samples_s", "wire_bytes_s", "loader_cores", "agent_cores"):
        assert getattr(found, name) == pytest.approx(getattr(after, name)), name


def test_seconds_used_of_each_resource() -> None:
    assert EPOCH.used(SEEN) == {
        "gpu_samples_s": 2.0,
        "wire_bytes_s": 5.0,
        "loader_cores": 4.0,
        "agent_cores": 1.5,
    }
    endless = Rates(math.inf, math.inf, math.inf, math.inf)
    assert set(EPOCH.used(endless).values()) == {0.0}
