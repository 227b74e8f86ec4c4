"""What holds a plan to account: the epochs that were measured without offloading, and when to try again what failed.

Pure: numbers in, a decision out. No clock, no socket; whoever measures epochs tells what they took.
"""

from __future__ import annotations

import math

LONGER = 1.05
"""Times longer per sample than another epoch that one must be before it counts as slower. Whole epochs on two shared
cores scatter by 2 to 4 % (docs/results.md), and planning for less than 5 % would be planning for noise."""
MAX_EPOCHS = 16
"""That a retry waits at most. A trial is at worst one slow epoch, so of a run that always fails one in 17 is lost."""


class Retry:
    """When to try again what has failed: after 1, 2, 4, ... and then every 16 epochs.

    It counts whole epochs: one that fails at the end of epoch k is due again for epoch k + 2, then 3 later, 5 later.
    """

    def __init__(self) -> None:
        self._wait = 1
        self._left = 0

    @property
    def due(self) -> bool:
        """Whether the next epoch may try."""
        return self._left == 0

    @property
    def fresh(self) -> bool:
        """Whether it has not failed since it last succeeded."""
        return self._wait == 1

    def failed(self) -> None:
        """The epoch that has ended tried, and it was no good."""
        self._left = self._wait
        self._wait = min(2 * self._wait, MAX_EPOCHS)

    def passed(self) -> None:
        """An epoch has ended that did not try."""
        self._left = max(0, self._left - 1)

    def at_once(self) -> None:
        """What was known when it failed holds no longer: the next epoch may try. The waits stay as long as they got."""
        self._left = 0

    def succeeded(self) -> None:
        """It was tried and it was good: a later failure starts with the shortest wait."""
        self._wait, self._left = 1, 0


class Guard:
    """Never stays on a plan whose epochs are longer than a measured one without offloading.

    Told of every whole epoch, it answers whether the next one must run without offloading:

    - An epoch under a plan that took more than 5 % longer per sample than the last one measured without offloading
      sends the next epoch back to that. This measures it anew, because the reason may be that all has become slower.
    - If the plan's epoch was not slower than the new one by those 5 % either, the plan was not at fault: it comes back
      at once, and is held to the new one from now on. This happens once; a plan that is accused again, without having
      been faster than not offloading in between, has failed. Else noise could send it to and fro in every epoch.
    - If it was slower, nothing is offloaded for 1 more epoch, then the plan gets another trial; after each further
      failure it waits twice as long, at most 16 epochs.
    - `rates_moved` lets it be tried at once, since it is another plan then. Of two waits in a row only one is cut short
      so, else rates that move in every epoch would take the waits away.
    - A plan that has been faster than not offloading by 5 % has proven itself: the waits start from 1 epoch again.

    Before an epoch without offloading has been measured (a reused profile), nothing is known and nothing is forbidden.
    """

    def __init__(self) -> None:
        self._retry = Retry()
        self._without_s: float | None = None
        self._accused_s: float | None = None  # what the plan took that the epoch without offloading now checks
        self._acquitted = self._cut_short = False
        self._off = False

    @property
    def must_not_offload(self) -> bool:
        """Whether the next epoch must run without offloading."""
        return self._off

    @property
    def reason(self) -> str:
        """Why, in a line for the report; empty while the plan may be used."""
        if not self._off or self._without_s is None:
            return ""
        if self._accused_s is not None:
            return (
                f"this epoch measures anew, without offloading: the last one took {_ms(self._accused_s)} per sample "
                f"with it, an earlier one {_ms(self._without_s)} without"
            )
        return f"nothing is offloaded for now: {_ms(self._without_s)} per sample without it were less than with it"

    def told(self, samples: int, seconds: float, *, offloading: bool) -> bool:
        """A whole epoch, or pass over some samples, has ended; whether the next one must run without offloading.

        Args:
            samples: how many it delivered; one of none says nothing.
            seconds: how long it took; without a length it says nothing either.
            offloading: whether its plan offloaded anything. An epoch whose plan was changed on the way says nothing of
                either kind and is not to be told.
        """
        if samples > 0 and 0 < seconds < math.inf:
            (self._with if offloading else self._without)(seconds / samples)
        return self._off

    def rates_moved(self) -> None:
        """What the plan is made from has changed: it may be tried at once."""
        if self._off and self._accused_s is None and not self._cut_short:
            self._cut_short = True
            self._retry.at_once()
            self._off = False

    def _with(self, each_s: float) -> None:
        known_s = self._without_s
        if known_s is None:
            return
        if each_s * LONGER < known_s:
            self._retry.succeeded()
            self._acquitted = self._cut_short = False
        self._off = each_s > LONGER * known_s
        self._accused_s = each_s if self._off else None

    def _without(self, each_s: float) -> None:
        accused_s, self._accused_s = self._accused_s, None
        self._without_s = each_s
        if accused_s is not None:
            if self._acquitted or accused_s > LONGER * each_s:
                self._retry.failed()
            self._acquitted = not self._acquitted and accused_s <= LONGER * each_s
        elif self._off:
            self._retry.passed()
            self._cut_short = self._cut_short and not self._retry.due
        self._off = not self._retry.due


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
