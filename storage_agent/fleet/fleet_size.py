"""Number of agents that a fleet should have, by its loaders' wishes. Reads no file and no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from sophon_loader.wire.entry import GONE_S
from sophon_loader.wire.wanted_cores import WantedCores

LOOK_S = 2.0
"""Seconds between two looks at the folder."""
HELD_S = 60.0
"""Seconds, without a break, for which fewer agents must have been enough before some are stopped."""
SPARED = 0.15
"""Share of the agents that must become needless before any of them is stopped."""
MAX_STEP_S = 5.0
"""Longest time in seconds that counts between two looks. Files may have changed unseen meanwhile: a host that slept, or
a folder that hung, makes no file old and no number held."""
_SLACK = 1e-6
"""Tolerance in agents: sums of floats may be above a whole number by rounding."""


class FoundWantedFile(NamedTuple):
    """A file of one rank as it was found. `seen` differs once the file has been rewritten."""

    seen: tuple[int, int, bytes]
    wanted: WantedCores


class _Known(NamedTuple):
    seen: tuple[int, int, bytes]
    unchanged_s: float
    is_alive: bool


class FleetSize:
    """The number of agents, from one look at the folder to the next.

    It rises at once to the number that is wanted. It falls to the largest number wanted within `held_s`, if that is
    lower by more than `SPARED`. A file found at the first look counts once it is rewritten: its training may be gone.

    Args:
        least, most: bounds of the number.
        held_s: see `HELD_S`.
        gone_s: seconds after which the training of an unchanged file counts as gone.

    Example:
        >>> size = FleetSize(1, 4)
        >>> size.after({}, present=1, now_s=0.0)
        1
        >>> size.after({"wanted-a-0.json": FoundWantedFile((1, 1, b""), WantedCores(6.0, 2.5))}, present=1, now_s=2.0)
        3
    """

    def __init__(self, least: int, most: int, *, held_s: float = HELD_S, gone_s: float = GONE_S) -> None:
        self.least, self.most = least, most
        self._held_s, self._gone_s = held_s, gone_s
        self._known: dict[str, _Known] = {}
        self._looked_at_s: float | None = None
        self._has_looked = False
        self._passed_s = 0.0
        """Sum of the steps, in seconds: the clock by which numbers are held."""
        self._held: deque[tuple[float, int]] = deque()
        """(time, wanted number) at each look, back to `held_s` ago, without those that a later one reaches."""
        self._held_from_s = 0.0

    def after(self, files: Mapping[str, FoundWantedFile] | None, present: int, now_s: float) -> int:
        """Return the number of agents that there should be.

        Args:
            files: name -> wanted cores; None if the folder could not be read.
            present: number of agents that run or start.
            now_s: monotonic time of this look.
        """
        if files is None:
            self._looked_at_s = None
            self._held.clear()
            return self._bounded(present)
        step_s = 0.0 if self._looked_at_s is None else min(max(now_s - self._looked_at_s, 0.0), MAX_STEP_S)
        self._looked_at_s = now_s
        self._passed_s += step_s
        self._take(files, step_s)
        living = (min(file.wanted.agents, self.most) for name, file in files.items() if self._counts(name))
        wanted = self._bounded(math.ceil(math.fsum(living) - _SLACK))
        self._hold(wanted)
        if wanted >= present:
            return wanted
        highest = self._held[0][1]
        long_enough = self._passed_s - self._held_from_s >= self._held_s
        return highest if long_enough and present - highest > SPARED * present else self._bounded(present)

    def _bounded(self, number: int) -> int:
        return max(self.least, min(self.most, number))

    def _counts(self, name: str) -> bool:
        known = self._known[name]
        return known.is_alive and known.unchanged_s < self._gone_s

    def _take(self, files: Mapping[str, FoundWantedFile], step_s: float) -> None:
        known = self._known
        self._known = {}
        for name, file in files.items():
            before = known.get(name)
            if before is None:
                self._known[name] = _Known(file.seen, 0.0, is_alive=self._has_looked)
            elif before.seen != file.seen:
                self._known[name] = _Known(file.seen, 0.0, is_alive=True)
            else:
                self._known[name] = before._replace(unchanged_s=before.unchanged_s + step_s)
        self._has_looked = True

    def _hold(self, wanted: int) -> None:
        if not self._held:
            self._held_from_s = self._passed_s
        while self._held and self._held[-1][1] <= wanted:
            self._held.pop()
        self._held.append((self._passed_s, wanted))
        while self._held[0][0] < self._passed_s - self._held_s:
            self._held.popleft()
