"""The rate of the user's training step, and how busy its device is."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from statistics import median

import torch

WINDOW_STEPS = 50
"""Steps that are measured with CUDA synchronised: enough for a median, and soon over, since each synchronisation takes
away what the GPU would have done in advance."""
_SKIPPED_STEPS = 2
"""The first steps, in which memory is allocated and kernels are chosen."""


class StepClock:
    """Samples per second that the training step consumes when its data is ready.

    A step is the time between one `next()` that has returned and the call of the following one. Inside the window of
    the first 50 steps CUDA is synchronised at the end of each step, so that its kernels are counted; afterwards the
    GPU is left alone, and on CUDA only the window's steps count.

    Example:
        >>> clock = StepClock()
        >>> for batch in batches:
        ...     clock.step_starts()
        ...     train(batch)
        ...     clock.step_ends(samples=len(batch))

    Args:
        clock: seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._returned_s: float | None = None
        self._steps_s: list[float] = []
        self._sizes: list[int] = []
        self._seen = 0

    @property
    def in_window(self) -> bool:
        """Whether the window is still open."""
        return self._seen < WINDOW_STEPS + _SKIPPED_STEPS

    def step_ends(self, samples: int) -> None:
        """`next()` is called; the step that ends with that worked on `samples` samples."""
        if self._returned_s is None:
            return
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            if not self.in_window:
                return
            torch.cuda.synchronize()
        self._seen += 1
        if self._seen > _SKIPPED_STEPS:
            self._steps_s.append(self._clock() - self._returned_s)
            self._sizes.append(samples)
        if len(self._steps_s) > 2 * WINDOW_STEPS:
            del self._steps_s[:WINDOW_STEPS], self._sizes[:WINDOW_STEPS]

    def step_starts(self) -> None:
        """`next()` has returned a batch."""
        self._returned_s = self._clock()

    def pause(self) -> None:
        """An epoch has ended: what the user does until the next one is no step."""
        self._returned_s = None

    @property
    def samples_s(self) -> float:
        """The rate; infinite before three steps have been seen, or when they take no time or work on no samples."""
        if not any(self._sizes):
            return math.inf
        step_s = median(self._steps_s)
        return sum(self._sizes) / len(self._sizes) / step_s if step_s > 0 else math.inf


def gpu_utilisation() -> float | None:
    """Share of time for which this process's GPU was busy lately, in [0, 1]; None without a device or without NVML.

    torch asks NVML by the device's place in the machine, which is not its number here under `CUDA_VISIBLE_DEVICES`.
    """
    if not torch.cuda.is_available():
        return None
    # Every cause has an exception of its own: ModuleNotFoundError without pynvml, RuntimeError without a driver or for
    # a device that is not visible, IndexError where none is, pynvml's own NVMLError for a missing library or a device
    # that does not report it (a MIG slice). None of them is a reason to end an epoch.
    with contextlib.suppress(Exception):
        return torch.cuda.utilization() / 100
    return None
