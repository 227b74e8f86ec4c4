"""What holds a plan to account: the epochs that were measured without offloading, and when to retry what failed.

Pure: numbers in, a decision out. No clock and no socket; whoever measures epochs hands in how long they took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LONGER = 1.05
"""An epoch counts as slower than another one if it takes more than this many times as long per sample. Whole epochs on
two shared cores scatter by 2 to 4 % (docs/results.md), so planning for less than 5 % would be planning for noise."""
MAX_EPOCHS = 16
"""The longest wait before a retry. A trial costs at worst one slow epoch, so a run that always fails loses 1 in 17."""


@dataclass(frozen=True)
class Retry:
    """When to try again what has failed: after 1, 2, 4, ... and from then on 16 epochs.

    It counts whole epochs: what fails at the end of epoch k is due again for epoch k + 2, the next time 3 epochs later,
    then 5 later. A value: each method returns the one that follows.

    Example:
        >>> Retry().failed().due, Retry().failed().passed().due
        (False, True)

    Args:
        wait: epochs to wait for after the next failure.
        left: epochs still to wait for.
    """

    wait: int = 1
    left: int = 0

    @property
    def due(self) -> bool:
        """Whether the next epoch may try."""
        return self.left == 0

    @property
    def fresh(self) -> bool:
        """Whether it has not failed since it last succeeded."""
        return self.wait == 1

    def failed(self) -> Retry:
        """The epoch that has ended tried it and failed."""
        return Retry(wait=min(2 * self.wait, MAX_EPOCHS), left=self.wait)

    def passed(self) -> Retry:
        """An epoch has ended that did not try it."""
        return replace(self, left=max(0, self.left - 1))

    def at_once(self) -> Retry:
        """What was known when it failed no longer holds: the next epoch may try. The waits stay as long as they are."""
        return replace(self, left=0)

    def succeeded(self) -> Retry:
        """It was tried with success: the waits start from the shortest one again."""
        return Retry()


class Guard:
    """Never stays on a plan whose epochs take longer than a measured one without offloading.

    It is told of every whole epoch, and answers whether the next one must run without offloading:

    - If an epoch under a plan took more than 5 % longer per sample than the last one measured without offloading, the
      next epoch runs without. That measures it anew, because everything may have become slower.
    - If the plan's epoch was not slower by 5 % than this new one either, the plan was not at fault: it comes back at
      once, and is compared with the new one from now on. This happens once; a plan that is accused again, and was not
      faster than not offloading in between, has failed. Otherwise noise could switch it on and off in every epoch.
    - If it was slower, nothing is offloaded for 1 more epoch, then the plan gets another trial; after each further
      failure it waits twice as long, at most 16 epochs.
    - `rates_moved` lets it be tried at once, since it is another plan then. It cuts only one of two consecutive waits
      short; otherwise rates that move in every epoch would abolish the waits.
    - A plan that has been faster than not offloading by 5 % has proven itself: the waits start from 1 epoch again.

    Before an epoch without offloading has been measured (a reused profile), nothing is known and nothing is forbidden.

    Example:
        >>> guard = Guard()
        >>> guard.told(100, 2.0, offloading=False)
        False
        >>> guard.told(100, 5.0, offloading=True)
        True
    """

    def __init__(self) -> None:
        self._retry = Retry()
        self._without_s: float | None = None  # per sample, as are all seconds here
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
        """A whole epoch, or one pass of an endless one, has ended; returns `must_not_offload`.

        Args:
            samples: how many it delivered; without any it shows nothing.
            seconds: how long it took; one that is not above 0 and finite shows nothing either.
            offloading: whether its plan offloaded anything. An epoch whose plan changed on the way is of neither kind
                and must not be handed in.
        """
        if samples <= 0 or not 0 < seconds < math.inf:
            return self._off
        if offloading:
            self._judge(seconds / samples)
        else:
            self._compare(seconds / samples)
        return self._off

    def rates_moved(self) -> None:
        """What the plan is made from has changed: it may be tried at once."""
        if self._off and self._accused_s is None and not self._cut_short:
            self._cut_short = True
            self._retry = self._retry.at_once()
            self._off = False

    def _judge(self, plan_s: float) -> None:
        """An epoch under the plan."""
        known_s = self._without_s
        if known_s is None:
            return
        if plan_s * LONGER < known_s:
            self._retry = self._retry.succeeded()
            self._acquitted = self._cut_short = False
        self._off = plan_s > LONGER * known_s
        self._accused_s = plan_s if self._off else None

    def _compare(self, without_s: float) -> None:
        """An epoch without offloading, with which plans are compared from now on."""
        accused_s, self._accused_s = self._accused_s, None
        self._without_s = without_s
        if accused_s is not None:
            slower = accused_s > LONGER * without_s
            if slower or self._acquitted:
                self._retry = self._retry.failed()
            self._acquitted = not slower and not self._acquitted
        elif self._off:
            self._retry = self._retry.passed()
            self._cut_short = self._cut_short and not self._retry.due
        self._off = not self._retry.due


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
