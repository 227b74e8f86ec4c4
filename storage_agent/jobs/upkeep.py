"""What a sample costs apart from reading, ops and encoding: taking requests in, passing on, sending."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST, _WINDOW = 4, 32
"""Samples after which the mean is revised: the first time soon, so that a plan has something to go by, though that is
what a cold start took; the first whole window is taken in its place."""
_MAX_S = 5e-3
"""A mean above this is something else: a long listing, say, or a pipeline that was built."""
_WEIGHT = 0.3
"""Of the newest window in the running mean, once there has been a whole one."""


class Upkeep:
    """A running mean of this process's CPU seconds per sample that are not its work on samples.

    Args:
        clock: CPU seconds of this process.

    Example:
        >>> upkeep = Upkeep()
        >>> upkeep.count(work_s=0.002)  # after every sample
        >>> upkeep.per_sample_s
        0.0

    Attributes:
        per_sample_s: the mean; 0 until a few samples have been counted.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._work_s = 0.0
        self._samples = 0
        self._window, self._weight = _FIRST, 1.0
        self.per_sample_s = 0.0

    def count(self, work_s: float) -> None:
        """One sample is done; `work_s` CPU seconds of this process went into reading, ops and encoding."""
        if self._since_s is None:  # what was before the first sample is no upkeep
            self._since_s = self._clock()
            return
        self._samples += 1
        self._work_s += work_s
        if self._samples < self._window:
            return
        now_s = self._clock()
        mean_s = max(0.0, now_s - self._since_s - self._work_s) / self._samples
        if mean_s <= _MAX_S:
            self.per_sample_s += self._weight * (mean_s - self.per_sample_s)
            self._weight = 1.0 if self._window == _FIRST else _WEIGHT
        self._since_s, self._work_s, self._samples, self._window = now_s, 0.0, 0, _WINDOW
