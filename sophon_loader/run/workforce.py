"""Number of workers of a loader with `num_workers="auto"`. Pure: takes what passed in a while, and returns a number.

How busy workers are does not show if more would help: one that waits for replies may wait for a full wire, or because
of its latency. So a number is tried, and kept if the loader got faster, as a person would do it. A number that did
not help is tried again later, after a pause that doubles each time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from sophon_loader.errors import ConfigError

FIRST = 4
"""Maximum number of workers at first; one for every two cores if that is less."""
MOST_PER_CORE = 2
"""Maximum number of workers per core. Those above one are for waiting, not for work: they need free cores."""
SHIFT_S = 5.0
"""Minimum duration of a trial, in seconds ..."""
STARTS_PER_SHIFT = 20
"""... or this multiple of the time that workers take to start, if that is longer, but at most ..."""
LONGEST_SHIFT_S = 60.0
"""... this."""
BATCHES_PER_WORKER = 4
"""Minimum number of batches per worker in a trial. With fewer, batches fetched earlier would decide."""
WAITED_MORE, WAITED_LESS = 0.05, 0.02
"""Shares of the time for which the training waits. Above the first there may be too few workers, below the second too
many."""
CORES_IN_USE = 0.9
"""Share of the cores that workers use, from which on more of them would only share these."""
MUST_GAIN = 1.05
"""Minimum factor in samples/s that more workers must bring."""
MAY_LOSE = 0.98
"""Minimum factor in samples/s that fewer workers must keep."""
CLEARLY_WORSE = 0.9
"""Factor in samples/s below which a trial ends as early as possible."""
IN_RESERVE = 1.25
"""Number of workers kept, as a multiple of those occupied."""
OTHER_TIMES = 0.7
"""Factor to the last rate below which, or above whose inverse, circumstances have changed: all may be tried again."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 64
"""Number of shifts until something useless is tried again: the first pause, and the longest."""


class AutoWorkers(int):
    """The current number of workers of a loader: an int to its readers, "auto" to a loader made with it.

    Example:
        >>> AutoWorkers(2) == 2
        True
    """


@dataclass(frozen=True)
class Shift:
    """A period with a constant number of workers.

    Args:
        seconds: its duration.
        batches, samples: delivered in it.
        awaited_s: seconds for which the training waited for a batch.
        occupied_s: seconds, over all workers, that they were at a batch, with waiting for replies.
        cpu_s: CPU seconds of all workers.
    """

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    awaited_s: float = 0.0
    occupied_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Shift) -> Shift:
        """Return the sum of both."""
        return Shift(*(one + more for one, more in zip(self._values(), other._values(), strict=True)))

    def minus(self, other: Shift) -> Shift:
        """Return what passed between two moments with the same beginning."""
        return Shift(*(one - less for one, less in zip(self._values(), other._values(), strict=True)))

    def _values(self) -> tuple[Any, ...]:
        return self.seconds, self.batches, self.samples, self.awaited_s, self.occupied_s, self.cpu_s

    @property
    def samples_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


Way = Literal["more", "fewer"]


@dataclass(frozen=True)
class _Trial:
    """A number on trial, and the one before."""

    way: Way
    before: int
    samples_s: float


class Workforce:
    """Finds the number of workers.

    Args:
        cores: that this loader may use.
        number: at first; None for a few.

    Attributes:
        number: of workers, now.
        start_s: seconds that workers took to start, up to their first batch.

    Example:
        >>> workforce = Workforce(cores=8.0)
        >>> workforce.number
        4
        >>> workforce.passed(Shift(seconds=10.0, batches=40, samples=400, awaited_s=9.0, occupied_s=40.0, cpu_s=39.0))
        >>> workforce.decide()
        8
    """

    def __init__(self, cores: float, number: int | None = None) -> None:
        self._cores = cores
        self.most = max(1, math.floor(MOST_PER_CORE * cores))
        self.number = min(number or max(1, min(FIRST, round(cores / 2))), self.most)
        self.start_s = 0.0
        self._shift = Shift()
        self._trial: _Trial | None = None
        self._samples_s = 0.0  # of the last shift
        self._pauses: dict[Way, int] = {"more": 0, "fewer": 0}  # shifts that are still to pass
        self._lengths: dict[Way, int] = {"more": FIRST_PAUSE, "fewer": FIRST_PAUSE}  # of the next pause

    def passed(self, shift: Shift) -> None:
        """Add a period with this number of workers."""
        self._shift = self._shift.plus(shift)

    @property
    def shift_s(self) -> float:
        """Minimum duration of a trial, in seconds."""
        return max(SHIFT_S, min(STARTS_PER_SHIFT * self.start_s, LONGEST_SHIFT_S))

    @property
    def is_due(self) -> bool:
        """True if enough has passed to decide: less for a number that is clearly worse than the one before."""
        trial, shift = self._trial, self._shift
        worse = trial is not None and shift.samples_s < CLEARLY_WORSE * trial.samples_s
        return shift.seconds >= (SHIFT_S if worse else self.shift_s) and (
            shift.batches >= BATCHES_PER_WORKER * self.number
        )

    def at_epoch(self) -> int:
        """Return the number with which an epoch begins."""
        return self.decide() if self.is_due else self.number

    def decide(self) -> int:
        """Return the number from now on."""
        shift, self._shift = self._shift, Shift()
        trial, self._trial = self._trial, None
        before_s, self._samples_s = self._samples_s, shift.samples_s
        if trial is not None:
            self._judge(trial, shift.samples_s)
            if self.number == trial.before:
                self._samples_s = trial.samples_s
                return self.number
        elif before_s and not OTHER_TIMES < shift.samples_s / before_s < 1 / OTHER_TIMES:
            self._pauses = {"more": 0, "fewer": 0}
        self._pauses = {way: max(0, left - 1) for way, left in self._pauses.items()}
        waited = shift.awaited_s / shift.seconds
        if waited > WAITED_MORE and shift.cpu_s < CORES_IN_USE * self._cores * shift.seconds:
            self._try("more", min(2 * self.number, self.most))
        elif waited < WAITED_LESS:
            self._try("fewer", max(1, math.ceil(IN_RESERVE * shift.occupied_s / shift.seconds)))
        return self.number

    def refused(self, number: int) -> None:
        """Note that the number cannot change for now, and stays as it was.

        Args:
            number: of the current workers.
        """
        if self._trial is not None:
            self._pauses[self._trial.way] = self._lengths[self._trial.way]
        self.number, self._trial = number, None

    def _try(self, way: Way, number: int) -> None:
        useful = number > self.number if way == "more" else number < self.number
        if useful and not self._pauses[way]:
            self._trial = _Trial(way, self.number, self._samples_s)
            self.number = number

    def _judge(self, trial: _Trial, samples_s: float) -> None:
        """Keep the number that was tried, or go back."""
        must = MUST_GAIN if trial.way == "more" else MAY_LOSE
        if samples_s >= must * trial.samples_s:
            self._lengths[trial.way] = FIRST_PAUSE
            return
        self.number = trial.before
        self._pauses[trial.way] = self._lengths[trial.way]
        self._lengths[trial.way] = min(2 * self._lengths[trial.way], LONGEST_PAUSE)


def own_cores(cores: float) -> float:
    """Return this process's share of a host's cores; torchrun sets the number of processes.

    Args:
        cores: that the processes may use.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return cores / max(1, int(ranks)) if ranks.isdigit() else cores


def asked_for(num_workers: Any, cores: float, *, iterable: bool) -> tuple[int, Workforce | None]:
    """Return the number of workers for an argument, and the object that finds another one if that is asked for.

    Args:
        num_workers: an int, "auto", or the number of another loader.
        cores: that this process may use.
        iterable: True if the dataset is, so that each of its workers reads it in its own way.

    Raises:
        ConfigError: "auto" for an iterable dataset, or another text.
    """
    if not isinstance(num_workers, (str, AutoWorkers)):
        return num_workers, None
    if isinstance(num_workers, str) and num_workers != "auto":
        raise ConfigError(f"num_workers must be an int or 'auto', got {num_workers!r}; write 'auto' to have it found")
    if iterable:
        raise ConfigError(
            "num_workers must be an int for an iterable dataset, got 'auto'; choose a number, because the samples of "
            "such a dataset depend on how many workers read it"
        )
    workforce = Workforce(own_cores(cores), int(num_workers) if isinstance(num_workers, AutoWorkers) else None)
    return AutoWorkers(workforce.number), workforce
