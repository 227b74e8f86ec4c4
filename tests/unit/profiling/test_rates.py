"""What the four resources can do: the step clock, the burst over the wire, and what an epoch corrects."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.burst import measure_wire
from sophon_loader.decide.facts import Rates
from sophon_loader.errors import AgentUnreachable
from sophon_loader.profiling import steps as module
from sophon_loader.profiling.rates import EpochMeasure, Healing, revised, wire_may_do_more
from sophon_loader.profiling.steps import WINDOW_STEPS, StepClock
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
WAITED = {"waiting": 0.8, "loader_cpu_s": 4.0}
"""The loader waited for 8 of the 10 seconds, and used its two cores in the others."""

CASES: dict[str, tuple[Rates, dict[str, Any], Rates]] = {
    "nothing held the loader up": (BEFORE, {}, IDLE),
    "it waited a little": (BEFORE, {"waiting": 0.2}, replace(SEEN, loader_cores=1.0)),
    "the training step held it up": (BEFORE, HELD_UP, replace(BEFORE, **HELD_UP)),
    "wire-bound: the wire ran at its rate": (BEFORE, WAITED, replace(SEEN, wire_bytes_s=5e6)),
    "it waited for a part, on a wire with room": (BEFORE, {"waiting": 0.5}, replace(SEEN, loader_cores=1.6)),
    "it waited for a part, on a wire near its limit": (
        BEFORE,
        {"waiting": 0.5, "wire_bytes": 95e6},
        replace(SEEN, loader_cores=1.6, wire_bytes_s=9.5e6),
    ),
    "wire-bound, never measured": (
        replace(BEFORE, wire_bytes_s=math.inf),
        WAITED,
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "agent-bound by queueing": (
        BEFORE,
        {**WAITED, "queueing": 0.9},
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
    "nothing came over the wire": (BEFORE, {**WAITED, "wire_bytes": 0}, SEEN),
    "a loader whose clock stood still": (BEFORE, {"loader_cpu_s": 0.0}, SEEN),
    "queueing at an agent whose clock stood still": (
        BEFORE,
        {**WAITED, "agent_cpu_s": 0.0, "queueing": 0.9},
        SEEN,
    ),
    "the agent's seconds are not a number": (
        BEFORE,
        {**WAITED, "agent_cpu_s": math.nan, "queueing": 0.9},
        SEEN,
    ),
    "the queue's seconds are not a number": (
        BEFORE,
        {**WAITED, "queueing": math.nan},
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "the agent's seconds are endless": (BEFORE, {"agent_cpu_s": math.inf, **HELD_UP}, replace(BEFORE, **HELD_UP)),
    "the agent's seconds are negative": (
        BEFORE,
        {**WAITED, "agent_cpu_s": -5.0, "queueing": 0.9},
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


# --- what may rise without proof ------------------------------------------------------------------------------

LOW = replace(BEFORE, loader_cores=0.5, agent_cores=0.5)
"""As after a bad moment."""
BUSY_WIRE = {"waiting": 0.8, "loader_cpu_s": 1.6, "wire_bytes": 100e6, "agent_cpu_s": 3.0, "offloaded": 900}
"""An epoch that the wire limits, with 0.8 cores' worth of work in the loader's own time, and 0.3 at the agent."""

RISES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[float, float]]] = {
    "working time in an epoch that waited for long": ({}, {}, (0.8, 0.75)),
    "no more than the loader may use": ({"most_loader_cores": 0.6}, {}, (0.6, 0.75)),
    "working time, held up by the training step": ({}, {"waiting": 0.2, "loader_cpu_s": 5.6, **HELD_UP}, (0.7, 0.75)),
    "working time is no reason to lower it in such an epoch": ({}, {"loader_cpu_s": 0.2}, (0.5, 0.75)),
    "a loader that did nothing but wait": ({}, {"waiting": 1.0}, (0.5, 0.75)),
    "a loader that waited for longer than the epoch": ({}, {"waiting": 1.02}, (0.5, 0.75)),
    "the wait is not a number": ({}, {"waiting": math.nan}, (0.5, 0.75)),
    "no more than the agent offers": ({"offered_agent_cores": 0.6}, {}, (0.8, 0.6)),
    "an agent that now offers less than it has done": ({"offered_agent_cores": 0.2}, {}, (0.8, 0.5)),
    "nothing said of what the agent offers": ({"offered_agent_cores": 0.0}, {}, (0.8, 0.5)),
    "bolder": ({"growth": 3.0}, {}, (0.8, 1.5)),
    "nothing is hoped": ({"hoped": ()}, {}, (0.5, 0.5)),
    "it starts from what was shown": ({}, {"agent_cpu_s": 8.0}, (0.8, 1.2)),
    "samples wait for the agent for half of their time": ({}, {"queueing": 0.5}, (0.8, 0.5)),
    "the queue's seconds are not a number": ({}, {"queueing": math.nan}, (0.8, 0.5)),
    "they wait for the agent alone": ({}, {"queueing": 0.9}, (0.8, 0.3)),
}


@pytest.mark.parametrize("case", RISES)
def test_what_an_epoch_leaves_open_may_rise(case: str) -> None:
    arguments, changes, cores = RISES[case]
    found = revised(LOW, replace(EPOCH, **{**BUSY_WIRE, **changes}), **{"offered_agent_cores": 4.0, **arguments})
    assert (found.loader_cores, found.agent_cores) == pytest.approx(cores)


def healed(healing: Healing, rates: Rates, planned: bool = True, **changes: Any) -> Rates:
    """The rates after an epoch."""
    return healing.revised(rates, replace(EPOCH, **{**BUSY_WIRE, **changes}), 1.0, 1.0, planned=planned)


def test_from_a_hundredth_of_the_agent_s_cores_to_all_in_three_unhindered_epochs() -> None:
    healing, rates = Healing(), replace(LOW, agent_cores=0.01)
    seen = []
    for _ in range(3):  # each makes use of what the plan counts on
        rates = healed(healing, rates, agent_cpu_s=9.0 * rates.agent_cores)
        seen.append(rates.agent_cores)
    assert seen == pytest.approx([0.03, 0.18, 1.0])


def test_what_is_not_put_to_the_test_grows_by_half_and_no_faster() -> None:
    healing, rates = Healing(), replace(LOW, agent_cores=0.01)
    for number in range(1, 6):
        rates = healed(healing, rates, agent_cpu_s=0.0)
        assert rates.agent_cores == pytest.approx(0.01 * 1.5**number)


@pytest.mark.parametrize("used", [0.0, 0.9])
def test_while_nothing_may_be_offloaded_it_rises_once(used: float) -> None:
    healing, rates = Healing(), replace(LOW, agent_cores=0.01)
    first = rates = healed(healing, rates, planned=False, agent_cpu_s=10 * used * rates.agent_cores)
    assert 0.01 < first.agent_cores <= 0.03
    for _ in range(20):
        rates = healed(healing, rates, planned=False, agent_cpu_s=0.0)
    assert rates.agent_cores == first.agent_cores
    assert healed(healing, rates, agent_cpu_s=0.0).agent_cores > first.agent_cores


def test_an_agent_that_cannot_do_more_is_tried_more_and_more_seldom() -> None:
    """It offers 1 core and has half of one."""
    healing, rates, trials, cores = Healing(), LOW, [], []
    for number in range(100):
        if rates.agent_cores > 0.55:
            trials.append(number)
            cores.append(rates.agent_cores)
            rates = healed(healing, rates, agent_cpu_s=5.0, queueing=0.95)
        else:
            rates = healed(healing, rates, agent_cpu_s=4.9)
    assert trials == [1, 3, 6, 11, 20, 37, 54, 71, 88]
    assert cores == pytest.approx([1.0] + 8 * [0.75]), "bold only at first"


def test_a_loader_that_only_looks_faster_when_it_sleeps_is_tried_more_and_more_seldom() -> None:
    """Something else takes half of its core; a worker that mostly sleeps gets all of it when it wakes up."""
    healing, rates, trials = Healing(), LOW, []
    for number in range(60):
        if rates.loader_cores > 0.55:
            trials.append(number)
            rates = healed(healing, rates, waiting=0.1, loader_cpu_s=4.5)
        else:
            rates = healed(healing, rates, waiting=0.7, loader_cpu_s=2.9)
    assert trials == [1, 3, 6, 11, 20, 37, 54]


def test_a_resource_that_has_come_back_is_tried_at_once_the_next_time() -> None:
    healing, rates, failed = Healing(), LOW, 0
    for _ in range(20):  # it really has no more
        if rates.agent_cores < 0.7:
            rates = healed(healing, rates, agent_cpu_s=4.9)
        else:
            rates, failed = healed(healing, rates, agent_cpu_s=5.0, queueing=0.95), failed + 1
    assert failed == 4
    for _ in range(20):
        rates = healed(healing, rates, agent_cpu_s=9.0 * rates.agent_cores)
    assert rates.agent_cores == pytest.approx(1.0)
    rates = healed(healing, rates, agent_cpu_s=5.0, queueing=0.95)  # another bad moment
    assert rates.agent_cores == pytest.approx(0.5)
    rates = healed(healing, rates, agent_cpu_s=4.5)
    assert rates.agent_cores == pytest.approx(1.0), "at once"
