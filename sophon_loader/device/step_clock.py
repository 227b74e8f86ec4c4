"""Measures the rate of the user's training step, and how busy its device is."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from sophon_loader.errors import raised_by_handler

WINDOW_STEPS = 50
"""Number of steps measured with CUDA synchronised. Few, since each synchronisation prevents the GPU's queue from
running ahead."""
KEPT_STEPS = 2 * WINDOW_STEPS
"""Number of newest steps that determine the rate. It follows a change soon, and each 33rd step occurs three times."""
ONE_OFF_STEPS = 2
"""Number of those steps that count as one-offs (a validation, a checkpoint) of any length."""
VERDICT_STEPS = 20
"""Steps before the limiting resource is reported."""
_SKIPPED_STEPS = 2
"""Number of first steps that are not counted: memory is allocated and kernels are chosen."""
_MAX_PENDING = 64
"""Maximum number of steps whose end on the device is awaited; above it, the oldest are forgotten."""


class StepClock:
    """Samples per second that the training step consumes when its data is ready.

    A step is the time from one `next()` returning to the call of the following one. In the first 50 steps, CUDA is
    synchronised at the end of each step, so that its kernels are counted. Afterwards the GPU is not disturbed, and
    events on the current stream show when it began and ended a step.

    Each n-th step may be a slow one (gradient accumulation, an all-reduce), so the rate is a mean. A slow step that
    occurs once or twice in 100 steps counts only as much as the longest of the others.

    Example:
        >>> clock = StepClock()
        >>> for batch in batches:
        ...     clock.batch_comes()
        ...     clock.step_starts()
        ...     train(batch)
        ...     clock.step_ends(samples=len(batch))

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._returned_s: float | None = None
        self._steps: deque[tuple[float, int]] = deque(maxlen=KEPT_STEPS)  # seconds and samples
        self._seen = 0
        self._began: Any = None
        self._pending: deque[tuple[Any, Any, float, int]] = deque(maxlen=_MAX_PENDING)

    @property
    def judges(self) -> bool:
        """True if enough steps were seen to name the limiting resource. The first ones are slow, and batches are
        waiting for them."""
        return self._seen >= VERDICT_STEPS

    @property
    def in_window(self) -> bool:
        """True while the first steps are measured with CUDA synchronised."""
        return self._seen < WINDOW_STEPS + _SKIPPED_STEPS

    def batch_comes(self) -> None:
        """Note that a batch is here. Work on it on the device, from now on, is part of the step."""
        self._began = _event() if not self.in_window and _on_cuda() else None

    def step_ends(self, samples: int) -> None:
        """Note that `next()` is called, which ends a step that worked on `samples` samples."""
        if self._returned_s is None:
            return
        if _on_cuda():
            if not self.in_window:
                if self._began is not None:
                    self._pending.append((self._began, _event(), self._clock() - self._returned_s, samples))
                self._count_ended()
                return
            torch.cuda.synchronize()
        self._seen += 1
        if self._seen > _SKIPPED_STEPS:
            self._steps.append((self._clock() - self._returned_s, samples))

    def _count_ended(self) -> None:
        """Count the steps that the device has ended by now. None is shorter than this process measured."""
        while self._pending and self._pending[0][1].query():
            began, ended, here_s, samples = self._pending.popleft()
            with contextlib.suppress(RuntimeError):  # on another device than it began on
                self._steps.append((max(here_s, began.elapsed_time(ended) / 1000), samples))

    def step_starts(self) -> None:
        """Note that `next()` has returned a batch."""
        self._returned_s = self._clock()

    def pause(self) -> None:
        """Note that an epoch has ended: the time until the next one is not a step."""
        self._returned_s = self._began = None

    @property
    def samples_s(self) -> float:
        """The rate; infinite before three steps were seen, or if they take no time or work on no samples."""
        samples = sum(size for _, size in self._steps)
        if not samples:
            return math.inf
        longest_s = sorted((seconds for seconds, _ in self._steps), reverse=True)
        usual_s = longest_s[min(ONE_OFF_STEPS, len(longest_s) - 1)]
        taken_s = sum(min(seconds, usual_s) for seconds in longest_s)
        return samples / taken_s if taken_s > 0 else math.inf

    @property
    def of_device_s(self) -> float:
        """The rate if a device runs the steps, which continue there after the process has ended its part; otherwise
        inf."""
        return self.samples_s if _on_cuda() else math.inf


def _on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _event() -> Any:
    """Record an event in the current stream, whose time is available once the device has reached it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def gpu_utilisation() -> float | None:
    """Return the share of recent time for which this process's GPU was busy, in [0, 1]; None without a device or NVML.

    torch asks NVML by the device's place in the machine, which is not its number here under `CUDA_VISIBLE_DEVICES`.
    """
    if not torch.cuda.is_available():
        return None
    # Each cause has its own exception. ModuleNotFoundError: no pynvml. RuntimeError: no driver, or the device is not
    # visible. IndexError: no device is visible. pynvml's NVMLError: no library, or the device does not report it (a MIG
    # slice). None of them is a reason to end an epoch.
    try:
        return torch.cuda.utilization() / 100
    except Exception as error:
        if raised_by_handler(error):
            raise
        return None
