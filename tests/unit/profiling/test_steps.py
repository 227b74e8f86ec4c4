"""The rate of the training step, and how busy its GPU is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sophon_loader.profiling.steps import WINDOW_STEPS, StepClock, gpu_utilisation
from tests.support.clocks import FakeClock

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

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronise)
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
