"""Whether the cache is left alone, by all processes of a loader: one has seen that its folder was exchanged, or a read
of it hangs. Each process notes when one begins, whoever looks sees how long that is ago."""

from __future__ import annotations

import os
import time

import numpy as np

from sophon_loader.host.shared import SharedArray

STUCK_S = 10.0
"""A disk that has not answered for so long is of no use."""
_PLACES = 512
"""Of processes, by their ids; where two have the same, a read that hangs may be seen later."""


class Reads:
    """When reads of a cache began that have not ended, in memory that all processes of a loader share.

    Example:
        >>> reads = Reads()
        >>> began_s = reads.begin()
        >>> reads.end(began_s)
        >>> reads.stuck
        False
    """

    def __init__(self) -> None:
        self._since_s, self._pids, self._is_stuck, self._is_exchanged = SharedArray.together(
            np.zeros(_PLACES), np.zeros(_PLACES, np.int64), np.zeros(1, np.uint8), np.zeros(1, np.uint8)
        )

    @property
    def left_alone(self) -> bool:
        """Whether nothing is read from the cache, nor written to it, any more."""
        return self.stuck or self.exchanged

    @property
    def stuck(self) -> bool:
        """Whether one has hung, in whichever process."""
        return bool(self._is_stuck.array[0])

    @property
    def exchanged(self) -> bool:
        """Whether a process has found a folder or a file that is not this user's alone."""
        return bool(self._is_exchanged.array[0])

    def note_exchanged(self) -> None:
        """A process has found one."""
        self._is_exchanged.array[0] = 1

    def begin(self) -> float:
        """A read begins; when, s."""
        began_s, pid = time.monotonic(), os.getpid()
        self._pids.array[pid % _PLACES] = pid
        self._since_s.array[pid % _PLACES] = began_s
        return began_s

    def end(self, began_s: float) -> None:
        """It has ended."""
        self._since_s.array[os.getpid() % _PLACES] = 0.0
        if time.monotonic() - began_s > STUCK_S:
            self._is_stuck.array[0] = 1

    def look(self) -> bool:
        """See whether one hangs now; whether one does, or has."""
        since_s = self._since_s.array
        for place in np.flatnonzero((since_s > 0) & (since_s < time.monotonic() - STUCK_S)):
            if os.path.exists(f"/proc/{self._pids.array[place]}"):
                self._is_stuck.array[0] = 1
            else:
                since_s[place] = 0.0  # that process was killed
        return self.stuck
