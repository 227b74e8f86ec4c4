"""How many workers a loader with `num_workers="auto"` has. Pure: what passed in a while goes in, a number comes out.

Whether more workers help cannot be told from how busy they are: one that waits for replies may wait for a wire that is
full, or for a way that is long. So a number is tried, and kept if the loader got faster, as a person would do it. What
was found to be of no use is tried again later, after twice as long each time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from sophon_loader.errors import ConfigError

FIRST = 4
"""Workers at first, at most; one for every two cores if that is less."""
MOST_PER_CORE = 2
"""Those above one per core are for waiting, not for work: they are tried only while cores are free."""
SHIFT_S = 5.0
"""For so long a number is looked at, at least ..."""
STARTS_PER_SHIFT = 20
"""... and for so many times as long as workers take to start, as long as that is below ..."""
LONGEST_SHIFT_S = 60.0
"""... this."""
BATCHES_PER_WORKER = 4
"""Of fewer, what was fetched before would decide."""
WAITED_MORE, WAITED_LESS = 0.05, 0.02
"""Share of the time for which the training waits: from the first on there may be too few workers, below the second too
many."""
CORES_IN_USE = 0.9
"""Share of the cores that workers use, from which on more of them would only share these."""
MUST_GAIN = 1.05
"""Times as many samples per second that more workers must bring."""
MAY_LOSE = 0.98
"""Times as many that fewer must still bring."""
CLEARLY_WORSE = 0.9
"""Times as many, below which a number is not looked at for longer than must be."""
IN_RESERVE = 1.25
"""Times as many workers as are occupied are kept."""
OTHER_TIMES = 0.7
"""A rate below so many times the last one, or above its inverse, is of other circumstances: all may be tried again."""
FIRST_PAUSE, LONGEST_PAUSE = 8, 64
"""Shifts until what was of no use is tried again."""


class AutoWorkers(int):
    """The number of workers that a loader has for now: an int to whoever reads it, "auto" to a loader made with it.

    Example:
        >>> AutoWorkers(2) == 2
        True
    """


@dataclass(frozen=True)
class Shift:
    """What passed in a while with the same number of workers.

    Args:
        seconds: that it took.
        batches, samples: delivered in it.
        awaited_s: seconds for which the training waited for a batch.
        occupied_s: seconds, over all workers, that they were at a batch, waiting for replies included.
        cpu_s: CPU seconds of all workers.
    """

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    awaited_s: float = 0.0
    occupied_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Shift) -> Shift:
        """Both together."""
        return Shift(*(one + more for one, more in zip(self._values(), other._values(), strict=True)))

    def minus(self, other: Shift) -> Shift:
        """Of two moments since the same beginning, what passed between them."""
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
    """A number that is looked at, and what there was before."""

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
        """Some time has passed with this number of workers."""
        self._shift = self._shift.plus(shift)

    @property
    def shift_s(self) -> float:
        """Seconds for which a number is looked at, at least."""
        return max(SHIFT_S, min(STARTS_PER_SHIFT * self.start_s, LONGEST_SHIFT_S))

    @property
    def is_due(self) -> bool:
        """Whether enough has passed to decide: less for a number that is clearly worse than the one before."""
        trial, shift = self._trial, self._shift
        worse = trial is not None and shift.samples_s < CLEARLY_WORSE * trial.samples_s
        return shift.seconds >= (SHIFT_S if worse else self.shift_s) and (
            shift.batches >= BATCHES_PER_WORKER * self.number
        )

    def at_epoch(self) -> int:
        """The number with which an epoch begins."""
        return self.decide() if self.is_due else self.number

    def decide(self) -> int:
        """The number from now on."""
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
        """There cannot be so many workers for now; there still are as many as before.

        Args:
            number: that there are.
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
    """Of a host's cores those for this process, which torchrun tells how many there are beside it.

    Args:
        cores: that it may use.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return cores / max(1, int(ranks)) if ranks.isdigit() else cores


def asked_for(num_workers: Any, cores: float, *, iterable: bool) -> tuple[int, Workforce | None]:
    """The number of workers that an argument means, and what finds another one if that is asked for.

    Args:
        num_workers: an int, "auto", or the number of another loader.
        cores: that this process may use.
        iterable: whether the dataset is, so that each of its workers reads it in a way of its own.

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
