"""Measures CPU time per sample apart from reading, ops and encoding: receiving requests, passing on, sending."""

from __future__ import annotations

import time
from collections.abc import Callable

_FIRST, _WINDOW = 4, 32
"""Samples per window of the mean, in the first window and later. The first is short, so that a plan soon has a figure.
It includes the cold start, so the second replaces it."""
_MAX_S = 5e-3
"""Highest plausible mean, in seconds; a higher one includes other work, e.g. a long listing or a pipeline's
building."""
_WEIGHT = 0.3
"""Weight of the newest window in the running mean, after the first full window."""


class Upkeep:
    """A running mean of this process's CPU seconds per sample that are not its work on samples.

    Args:
        clock: returns the CPU seconds of this process.

    Example:
        >>> upkeep = Upkeep()
        >>> upkeep.count(work_s=0.002)  # after every sample
        >>> upkeep.per_sample_s
        0.0

    Attributes:
        per_sample_s: the mean in seconds; 0 until a few samples have been counted.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self._clock = clock
        self._since_s: float | None = None
        self._work_s = 0.0
        self._samples = 0
        self._window, self._weight = _FIRST, 1.0
        self.per_sample_s = 0.0

    def count(self, work_s: float) -> None:
        """Count one finished sample.

        Args:
            work_s: CPU seconds of this process for its reading, ops and encoding.
        """
        if self._since_s is None:  # time before the first sample is no upkeep
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
