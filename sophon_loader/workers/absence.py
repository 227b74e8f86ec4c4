"""Which workers have given the agent up, and how long they have waited for it in vain: memory that outlives them."""

from __future__ import annotations

import numpy as np

from sophon_loader.client.options import OffloadOptions
from sophon_loader.host.shared import SharedArray
from sophon_loader.host.system import now_s

LOST_TIMES = 3
"""A worker may wait in vain for so many `resend_after_s`, and besides ..."""
LOST_SHARE = 0.05
"""... for this share of all time, over all epochs, where the files are on this host."""


class Absence:
    """What workers find out about the agent, for each other and for those that come after them.

    All are moments and durations of one clock, which processes of a host share. Every place has one writer: a worker
    its own, the main process `_back_s`. So neither can undo what the other has found out meanwhile.

    Args:
        workers: their number, at least 1.

    Example:
        >>> absence = Absence(workers=2)
        >>> absence.note(1, gave_up_s=now_s(), lost_s=10.0)
        >>> absence.gone(1), absence.gone_s > 0
        (True, True)
        >>> absence.back(now_s())
        >>> absence.gone(1)
        False
    """

    def __init__(self, workers: int) -> None:
        self._began_s = now_s()
        self._gave_up_s, self._lost_s, self._heard_s, self._back_s = SharedArray.together(
            np.zeros(workers), np.zeros(workers), np.zeros(workers), np.zeros(1)
        )

    def handed_on(self, workers: int) -> Absence:
        """What is known of the agent, for another number of workers: what one has found out, all have."""
        other = Absence(workers)
        other._began_s = self._began_s
        other._gave_up_s.array[:] = self._gave_up_s.array.max()
        other._lost_s.array[:] = self._lost_s.array.max()
        other._back_s.array[:] = self._back_s.array
        return other

    def gone(self, worker: int) -> bool:
        """Whether a worker should do without the agent: it gave it up, or another did that it has not heard since.

        So one worker waits for an agent that has gone, and not each of them in turn.
        """
        if self._gave_up_s.array[worker] > self._back_s.array[0]:
            return True
        return bool(self.gone_s > self._heard_s.array[worker])

    def hear(self, worker: int) -> None:
        """A sample from the agent has come to a worker."""
        self._heard_s.array[worker] = now_s()

    def left_s(self, worker: int, options: OffloadOptions) -> float:
        """For how long a worker may still wait in vain, s; not above 0 if it has done so for too long.

        Args:
            worker: its number.
            options: the time-outs.
        """
        may_s = LOST_TIMES * options.resend_after_s + LOST_SHARE * (now_s() - self._began_s)
        return float(may_s - self._lost_s.array[worker])

    def note(self, worker: int, gave_up_s: float, lost_s: float) -> None:
        """What a worker has found out.

        Args:
            worker: its number.
            gave_up_s: when it gave the agent up last; 0 if it has not.
            lost_s: for how long it has waited in vain since it noted this last, s.
        """
        self._gave_up_s.array[worker] = max(gave_up_s, self._gave_up_s.array[worker])
        self._lost_s.array[worker] += lost_s

    @property
    def gone_s(self) -> float:
        """When a worker gave the agent up last; 0 if it has answered since."""
        gave_up_s = float(self._gave_up_s.array.max())
        return gave_up_s if gave_up_s > self._back_s.array[0] else 0.0

    @property
    def back_s(self) -> float:
        """When the agent was asked whether it is back and then said so; 0 if it never had to be."""
        return float(self._back_s.array[0])

    def back(self, asked_s: float) -> None:
        """The agent has answered.

        Args:
            asked_s: what it was asked at that time.
        """
        self._back_s.array[0] = asked_s
