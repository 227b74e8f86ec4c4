"""Where an agent stands, as its loader knows it: events in, and when it is to be tried out. No clock, no socket.

starting ──> ready ──> gone <──> back        none, useless: not tried
"""

from __future__ import annotations

import enum
import math

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 4.0
"""How long an agent that does not serve is left alone between two trials: twice as long each time, up to the second.
One that returns is in use within 15 s: this pause, and what its workers take to start."""
MAX_SHARE = 0.05
"""Of all time, at most, that whoever tries it out may spend on that: a name server may take 10 s to say nothing."""


class Standing(enum.Enum):
    """Where an agent stands."""

    NONE = "none"
    """There is none."""
    USELESS = "useless"
    """It is not to be tried: it could gain nothing, or it has refused."""
    STARTING = "starting"
    """It has not served yet."""
    READY = "ready"
    """It serves."""
    GONE = "gone"
    """It has served, and was given up."""
    BACK = "back"
    """It serves again."""


class Route:
    """The standing of one agent. One process owns it; every time is of one clock that only goes forward.

    Args:
        standing: at first.
        now_s: the time.

    Attributes:
        standing: of now.
        why: what was got from it last instead of service; "" while it serves.

    Example:
        >>> route = Route(Standing.STARTING, now_s=100.0)
        >>> if route.due(now_s):
        ...     route.trial_begins()
        >>> route.failed(now_s, "got nothing within 5 s")  # tried again after 1 s, then 2, then every 4
    """

    def __init__(self, standing: Standing, now_s: float) -> None:
        self.standing = standing
        self.why = ""
        self._try_at_s = now_s
        self._pause_s = FIRST_PAUSE_S
        self._on_trial = False
        self._back_s = -math.inf

    @property
    def serves(self) -> bool:
        """Whether it is to be asked for samples."""
        return self.standing in (Standing.READY, Standing.BACK)

    @property
    def awaited(self) -> bool:
        """Whether it does not serve, and may do so later."""
        return self.standing in (Standing.STARTING, Standing.GONE)

    def due(self, now_s: float) -> bool:
        """Whether a trial should begin."""
        return self.awaited and not self._on_trial and now_s >= self._try_at_s

    def trial_begins(self) -> None:
        """It is being tried out; `failed`, `answered` or `refused` ends that."""
        self._on_trial = True

    def failed(self, now_s: float, why: str, spent_s: float = 0.0) -> None:
        """A trial has ended without service.

        Args:
            now_s: the time.
            why: what was got instead.
            spent_s: for how long the trial has kept whoever made it from its work.
        """
        if self.awaited:
            self.why, self._on_trial = why, False
            self._leave_alone(now_s, spent_s / MAX_SHARE)

    def answered(self, now_s: float) -> None:
        """A trial has found that it serves."""
        if self.awaited:
            self.standing = Standing.READY if self.standing is Standing.STARTING else Standing.BACK
            self.why, self._on_trial = "", False
            self._back_s = now_s

    def given_up(self, now_s: float, why: str) -> None:
        """It serves no longer. One that served for less than a pause is not tried sooner than it was before.

        Args:
            now_s: when that was found.
            why: what was got instead of samples.
        """
        if self.serves:
            if now_s - self._back_s > self._pause_s:
                self._pause_s = FIRST_PAUSE_S
            self.standing, self.why = Standing.GONE, why
            self._leave_alone(now_s)

    def _leave_alone(self, now_s: float, at_least_s: float = 0.0) -> None:
        self._try_at_s = now_s + max(self._pause_s, at_least_s)
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)

    def refused(self, why: str) -> None:
        """It cannot serve this loader, whenever it is asked: it is not tried any more.

        Args:
            why: what it said.
        """
        if self.standing is not Standing.NONE:
            self.standing, self.why, self._on_trial = Standing.USELESS, why, False
