"""The rate of the training step, and how busy its GPU is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sophon_loader.device.step_clock import KEPT_STEPS, WINDOW_STEPS, StepClock, gpu_utilisation
from tests.support.clocks import FakeClock

# --- the step clock -------------------------------------------------------------------------------------------


def steps(clock: FakeClock, step: StepClock, count: int, seconds: float, samples: int = 8, load_s: float = 5.0) -> None:
    """Some batches: each is loaded for `load_s` and worked on for `seconds`."""
    for _ in range(count):
        clock.now_s += load_s
        step.batch_comes()
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
    assert len(step._steps) <= KEPT_STEPS


@pytest.mark.parametrize("every", [2, 4, 8, 16, 32])
def test_each_nth_slow_step_counts(every: int) -> None:
    """Gradient accumulation, say: n - 1 steps of 0.1 s, and one of 1 s."""
    clock = FakeClock()
    step = StepClock(clock)
    for _ in range(512 // every):
        steps(clock, step, every - 1, 0.1)
        steps(clock, step, 1, 1.0)
    slow = sum(seconds > 0.5 for seconds, _ in step._steps)
    assert slow >= KEPT_STEPS // every
    assert step.samples_s == pytest.approx(8 * KEPT_STEPS / (KEPT_STEPS * 0.1 + slow * 0.9))


def test_two_one_offs_do_not_count() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    for seconds in (600.0, 60.0):
        steps(clock, step, 20, 0.25)
        steps(clock, step, 1, seconds)
    assert step.samples_s == pytest.approx(32)


def test_a_step_that_changes_is_followed() -> None:
    clock = FakeClock()
    step = StepClock(clock)
    steps(clock, step, 300, 0.25)
    steps(clock, step, KEPT_STEPS, 0.5)
    assert step.samples_s == pytest.approx(16)


class FakeEvent:
    """A CUDA event whose device works on what it was given, one after the other."""

    clock: FakeClock
    free_s = 0.0  # when the device has done all it was given

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at_s = max(self.clock.now_s, FakeEvent.free_s)

    def query(self) -> bool:
        return self.clock.now_s >= self.at_s

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1000 * (end.at_s - self.at_s)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock, and a device that kernels take `FakeEvent.free_s` to."""
    clock = FakeEvent.clock = FakeClock()
    monkeypatch.setattr(FakeEvent, "free_s", 0.0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: setattr(clock, "now_s", max(clock.now_s, FakeEvent.free_s)))
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    return clock


def queued(clock: FakeClock, step: StepClock, count: int, device_s: float, load_s: float) -> None:
    """Steps that only queue kernels of `device_s`, after `load_s` of waiting for the batch."""
    for _ in range(count):
        clock.now_s += load_s
        step.batch_comes()
        step.step_starts()
        FakeEvent.free_s = max(FakeEvent.free_s, clock.now_s) + device_s
        clock.now_s += 0.001
        step.step_ends(8)


@pytest.mark.parametrize("load_s", [0.01, 2.0], ids=["the device limits", "batches limit"])
def test_on_a_gpu_a_step_that_changes_is_followed_without_synchronising(cuda: FakeClock, load_s: float) -> None:
    step = StepClock(cuda)
    queued(cuda, step, WINDOW_STEPS + 2, 0.25, load_s)
    assert step.samples_s == pytest.approx(32)
    queued(cuda, step, KEPT_STEPS, 0.25, load_s)
    began_s, free_s = cuda.now_s, FakeEvent.free_s
    queued(cuda, step, 40, 0.5, load_s)
    assert cuda.now_s - began_s == pytest.approx(40 * (load_s + 0.001)), "nobody waited for the device"
    cuda.now_s = FakeEvent.free_s + 1
    queued(cuda, step, KEPT_STEPS, 0.5, load_s)
    cuda.now_s = FakeEvent.free_s + 1
    queued(cuda, step, 1, 0.5, load_s)
    assert free_s and step.samples_s == pytest.approx(16)


def test_on_a_gpu_steps_that_do_not_end_are_forgotten(cuda: FakeClock) -> None:
    step = StepClock(cuda)
    queued(cuda, step, WINDOW_STEPS + 2, 0.25, 1.0)
    FakeEvent.free_s = math.inf
    queued(cuda, step, 500, 0.25, 1.0)
    assert len(step._pending) <= 64 and step.samples_s == pytest.approx(32)


def test_on_a_gpu_marks_of_two_devices_are_no_step(cuda: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def elapsed(self: FakeEvent, end: FakeEvent) -> float:
        raise RuntimeError("both events must be on the same device")

    monkeypatch.setattr(FakeEvent, "elapsed_time", elapsed)
    step = StepClock(cuda)
    queued(cuda, step, WINDOW_STEPS + 9, 0.25, 1.0)
    assert len(step._steps) == WINDOW_STEPS and step.samples_s == pytest.approx(32)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_real_gpu_tells_when_its_steps_ended() -> None:
    """Matrices that take the device some time, of which this process waits for none once the window is over."""
    step, some = StepClock(), torch.randn(4096, 4096, device="cuda")
    for count, products in ((WINDOW_STEPS + 2, 1), (KEPT_STEPS + 20, 1), (KEPT_STEPS + 20, 4)):
        for _ in range(count):
            step.batch_comes()
            step.step_starts()
            for _ in range(products):
                some @ some
            step.step_ends(8)
        torch.cuda.synchronize()
        step.batch_comes()
        step.step_starts()
        step.step_ends(8)
        rate = step.samples_s
        if products == 1:
            before = rate
    assert 2 < before / rate < 8


def test_on_a_gpu_only_the_window_is_synchronised(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, synchronised = FakeClock(), []

    def synchronise() -> None:
        clock.now_s += 1.0  # the kernels that were still running
        synchronised.append(1)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronise)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(FakeEvent, "free_s", math.inf)
    FakeEvent.clock = clock
    step = StepClock(clock)
    steps(clock, step, WINDOW_STEPS + 2, 0.0)
    assert len(synchronised) == WINDOW_STEPS + 2
    steps(clock, step, 50, 0.0)
    assert len(synchronised) == WINDOW_STEPS + 2
    assert step.samples_s == pytest.approx(8), "a step that only queues its kernels is none"


# --- how busy the GPU is --------------------------------------------------------------------------------------
# There is no GPU where these run: torch.cuda is patched, so they show what is made of its answers, not the answers.


def test_without_a_device_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "utilization", lambda: pytest.fail("there is no device"))
    assert gpu_utilisation() is None


@pytest.mark.parametrize("percent", [0, 37, 100])
def test_a_patched_torch_s_percent_are_a_share(monkeypatch: pytest.MonkeyPatch, percent: int) -> None:
    asked: list[tuple[Any, ...]] = []

    def utilization(*device: Any) -> int:
        asked.append(device)
        return percent

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    assert gpu_utilisation() == percent / 100
    assert asked == [()], "of the current device, whose place in the machine torch knows"


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("nvidia-ml-py does not seem to be installed or it can't be imported."),
        RuntimeError("cuda driver can't be loaded, is cuda enabled?"),
        RuntimeError("device 1 is not visible (CUDA_VISIBLE_DEVICES=[3])"),
        IndexError("list index out of range"),
        AssertionError("Torch not compiled with CUDA enabled"),
        type("NVMLError_NotSupported", (Exception,), {})("Not Supported"),
    ],
    ids=repr,
)
def test_whatever_a_patched_torch_raises_means_unknown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def utilization() -> int:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    assert gpu_utilisation() is None


def test_torch_s_own_function_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed raises something, if it cannot tell, and nothing of it comes through."""
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert gpu_utilisation() is None
