"""Signals whose handler raises within one call, as while a loader is asked for a batch."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ALARM_S = 0.02
"""Within that time a signal comes, of each batch that is asked for while there are alarms."""


class Interrupted(Exception):
    """What `raise_within` raises."""


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, within which `raise_within` raises."""
    return function(*arguments)


def raise_within(number: int, frame: FrameType | None) -> None:
    """A handler that raises within the function that `interruptible` calls, and neither before nor behind it."""
    within = frame
    while within is not None and within.f_code is not interruptible.__code__:
        within = within.f_back
    if within is not None and within is not frame:
        raise Interrupted


class Alarms:
    """A signal for each batch that is asked for, whose handler raises within the loader; `deadline` stays set.

    Args:
        draw: gives the moments.

    Attributes:
        on: whether they come.
        raised: how often `next()` was left by one, by epoch.
    """

    def __init__(self, draw: random.Random) -> None:
        self.on = False
        self.raised = [0]
        self._draw = draw

    def next(self, batches: Iterator[Any]) -> Any:
        """The next batch, which is asked for again if a signal came; None at the end."""
        if self.on:
            left_s, since_s = signal.setitimer(signal.ITIMER_REAL, 0)[0], time.monotonic()
            before = signal.signal(signal.SIGALRM, raise_within)
            try:
                signal.setitimer(signal.ITIMER_REAL, self._draw.uniform(1e-5, ALARM_S))
                return interruptible(next, batches)
            except Interrupted:
                self.raised[-1] += 1
            except StopIteration:
                return None
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                if left_s:
                    signal.setitimer(signal.ITIMER_REAL, max(0.001, left_s - (time.monotonic() - since_s)))
        return next(batches, None)
