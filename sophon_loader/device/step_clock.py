"""The rate of the user's training step, and how busy its device is."""

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
"""Steps that are measured with CUDA synchronised: soon over, since each synchronisation takes away what the GPU would
have done in advance."""
KEPT_STEPS = 2 * WINDOW_STEPS
"""The newest steps, from which the rate is taken: a change is soon followed, and each 33rd step comes three times."""
ONE_OFF_STEPS = 2
"""Steps of those that are one-offs (a validation, a checkpoint), however long they took."""
VERDICT_STEPS = 20
"""Steps before which nothing is said of what limits."""
_SKIPPED_STEPS = 2
"""The first steps, in which memory is allocated and kernels are chosen."""
_MAX_PENDING = 64
"""Steps whose end on the device is waited for; of more, the oldest are forgotten."""


class StepClock:
    """Samples per second that the training step consumes when its data is ready.

    A step is the time between one `next()` that has returned and the call of the following one. Inside the window of
    the first 50 steps CUDA is synchronised at the end of each step, so that its kernels are counted; afterwards the
    GPU is left alone, and events on the current stream tell when it began and ended a step, once that is known.

    Each n-th step may be a slow one (gradient accumulation, an all-reduce), so the rate is a mean. What comes once or
    twice in 100 steps counts only as much as the longest of the others.

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
        """Whether enough has been seen to say what limits: the first steps are slow, and batches lie ready for them."""
        return self._seen >= VERDICT_STEPS

    @property
    def in_window(self) -> bool:
        """Whether the window is still open."""
        return self._seen < WINDOW_STEPS + _SKIPPED_STEPS

    def batch_comes(self) -> None:
        """A batch is here; what is still done with it on the device is a part of the step."""
        self._began = _event() if not self.in_window and _on_cuda() else None

    def step_ends(self, samples: int) -> None:
        """`next()` is called; the step that ends with that worked on `samples` samples."""
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
        """Count the steps that the device has ended by now; none is shorter than it was for this process."""
        while self._pending and self._pending[0][1].query():
            began, ended, here_s, samples = self._pending.popleft()
            with contextlib.suppress(RuntimeError):  # on another device than it began on
                self._steps.append((max(here_s, began.elapsed_time(ended) / 1000), samples))

    def step_starts(self) -> None:
        """`next()` has returned a batch."""
        self._returned_s = self._clock()

    def pause(self) -> None:
        """An epoch has ended: what the user does until the next one is no step."""
        self._returned_s = self._began = None

    @property
    def samples_s(self) -> float:
        """The rate; infinite before three steps have been seen, or when they take no time or work on no samples."""
        samples = sum(size for _, size in self._steps)
        if not samples:
            return math.inf
        longest_s = sorted((seconds for seconds, _ in self._steps), reverse=True)
        usual_s = longest_s[min(ONE_OFF_STEPS, len(longest_s) - 1)]
        taken_s = sum(min(seconds, usual_s) for seconds in longest_s)
        return samples / taken_s if taken_s > 0 else math.inf

    @property
    def of_device_s(self) -> float:
        """The rate where a device takes the steps, which go on there when the process has ended its part; else inf."""
        return self.samples_s if _on_cuda() else math.inf


def _on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _event() -> Any:
    """A mark in the current stream, whose time can be asked for once the device has come to it."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def gpu_utilisation() -> float | None:
    """Share of time for which this process's GPU was busy lately, in [0, 1]; None without a device or without NVML.

    torch asks NVML by the device's place in the machine, which is not its number here under `CUDA_VISIBLE_DEVICES`.
    """
    if not torch.cuda.is_available():
        return None
    # Every cause has an exception of its own: ModuleNotFoundError without pynvml, RuntimeError without a driver or for
    # a device that is not visible, IndexError where none is, pynvml's own NVMLError for a missing library or a device
    # that does not report it (a MIG slice). None of them is a reason to end an epoch.
    try:
        return torch.cuda.utilization() / 100
    except Exception as error:
        if raised_by_handler(error):
            raise
        return None
