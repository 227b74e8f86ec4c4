"""Decides, for all processes of a loader, if the cache is left alone: its folder was replaced, or a read of it hangs.

Each process notes the start of a read, so that any process can see how long it takes.
"""

from __future__ import annotations

import os
import time

import numpy as np

from sophon_loader.host.shared import SharedArray

STUCK_S = 10.0
"""Seconds without an answer after which a disk counts as hanging."""
_PLACES = 512
"""Number of places, which processes share by their ids. If two have the same place, a hanging read may be seen
later."""


class Reads:
    """Start times of unfinished reads of a cache, in memory that all processes of a loader share.

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
        """True if the cache is neither read nor written any more."""
        return self.stuck or self.exchanged

    @property
    def stuck(self) -> bool:
        """True if a read has hung in any process."""
        return bool(self._is_stuck.array[0])

    @property
    def exchanged(self) -> bool:
        """True if a process has found a folder or a file that other users can access."""
        return bool(self._is_exchanged.array[0])

    def note_exchanged(self) -> None:
        """Note that a folder or file is accessible to other users."""
        self._is_exchanged.array[0] = 1

    def begin(self) -> float:
        """Note that a read begins; returns its start, s."""
        began_s, pid = time.monotonic(), os.getpid()
        self._pids.array[pid % _PLACES] = pid
        self._since_s.array[pid % _PLACES] = began_s
        return began_s

    def end(self, began_s: float) -> None:
        """Note that the read has ended."""
        self._since_s.array[os.getpid() % _PLACES] = 0.0
        if time.monotonic() - began_s > STUCK_S:
            self._is_stuck.array[0] = 1

    def look(self) -> bool:
        """Check for a read that hangs now; True if one hangs or has hung."""
        since_s = self._since_s.array
        for place in np.flatnonzero((since_s > 0) & (since_s < time.monotonic() - STUCK_S)):
            if os.path.exists(f"/proc/{self._pids.array[place]}"):
                self._is_stuck.array[0] = 1
            else:
                since_s[place] = 0.0  # that process was killed
        return self.stuck
