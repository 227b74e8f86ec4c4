"""State of an agent, as its loader knows it: takes events, and says when to try the agent. No clock, no socket.

starting ──> ready ──> gone <──> back        none, useless: not tried
"""

from __future__ import annotations

import enum
import math

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 4.0
"""Pauses between two trials of an agent that does not serve, in seconds: the first, and the last after doubling.
An agent that returns is in use within 15 s: this pause, and the start of its workers."""
MAX_SHARE = 0.05
"""Maximum share of a thread's time spent on trials: a name server may take 10 s without an answer."""


class Standing(enum.Enum):
    """State of an agent."""

    NONE = "none"
    """There is no agent."""
    USELESS = "useless"
    """The agent is not to be tried: it could gain nothing, or it has refused."""
    STARTING = "starting"
    """The agent has not served yet."""
    READY = "ready"
    """The agent serves."""
    GONE = "gone"
    """The agent has served, and was given up."""
    BACK = "back"
    """The agent serves again."""


class Route:
    """The standing of one agent. One process owns it; all times are of one clock that only goes forward.

    Args:
        standing: at first.
        now_s: the time.

    Attributes:
        standing: current.
        why: its last result in place of service; "" while it serves.

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
        """True if the agent is to be asked for samples."""
        return self.standing in (Standing.READY, Standing.BACK)

    @property
    def awaited(self) -> bool:
        """True if the agent does not serve, and may do so later."""
        return self.standing in (Standing.STARTING, Standing.GONE)

    def due(self, now_s: float) -> bool:
        """Return True if a trial should begin."""
        return self.awaited and not self._on_trial and now_s >= self._try_at_s

    def trial_begins(self) -> None:
        """Note that a trial begins; `failed`, `answered` or `refused` ends it."""
        self._on_trial = True

    def failed(self, now_s: float, why: str, spent_s: float = 0.0) -> None:
        """Note that a trial has ended without service.

        Args:
            now_s: the time.
            why: its result in place of service.
            spent_s: seconds for which the trial has kept its caller from its work.
        """
        if self.awaited:
            self.why, self._on_trial = why, False
            self._leave_alone(now_s, spent_s / MAX_SHARE)

    def answered(self, now_s: float) -> None:
        """Note that the agent serves, by a trial."""
        if self.awaited:
            self.standing = Standing.READY if self.standing is Standing.STARTING else Standing.BACK
            self.why, self._on_trial = "", False
            self._back_s = now_s

    def given_up(self, now_s: float, why: str) -> None:
        """Note that the agent serves no longer. If it served for less than a pause, it is not tried sooner than before.

        Args:
            now_s: time at which that was found.
            why: what arrived instead of samples.
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
        """Note that the agent can never serve this loader, so it is not tried any more.

        Args:
            why: its answer.
        """
        if self.standing is not Standing.NONE:
            self.standing, self.why, self._on_trial = Standing.USELESS, why, False
