"""What all processes of a loader know of one agent, in memory that outlives the workers: what was agreed on with it,
who has given it up, how long it has been waited for in vain, and when it was back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgpack
import numpy as np

from sophon_loader.client.session import Terms
from sophon_loader.host.shared import SharedArray, SharedNotes
from sophon_loader.host.system import now_s

LOST_TIMES = 3
"""A worker may wait in vain for so many `resend_after_s`, and besides ..."""
LOST_SHARE = 0.05
"""... for this share of all time, over all epochs, where the files are on this host."""
_NOTE_NBYTES = 1 << 15
"""An address takes some 30 bytes as msgpack, the name of an encoding a dozen, a folder at most 4096; the agent's reach
comes on top."""


@dataclass(frozen=True)
class Agreed:
    """What an agent has agreed to.

    Args:
        terms: the proposed ones with what only the agent could say.
        reach: per source, the last stage that it reaches.
        place: where the files are, see `Locations`.
    """

    terms: Terms
    reach: tuple[int, ...]
    place: tuple[str, str] = ("", "")


class SharedRoute:
    """The way to one agent, as the main process and the workers see it.

    All times are of one clock, which processes of a host share. Every place has one writer: a worker its own, the main
    process what was agreed on and `back_s`. So neither can undo what the other has found out meanwhile, and what is
    half written is not read.

    Args:
        workers: their number, at least 1.
        proposed: what is known of the terms before the agent has agreed to them.

    Attributes:
        proposed: the same.

    Example:
        >>> route = SharedRoute(2, proposed)
        >>> route.agreed() is None  # until the agent has answered, workers read files themselves
        True
        >>> route.agree(Agreed(terms, reach=(3,), place=("train", "")))
        >>> route.note(1, gave_up_s=now_s(), lost_s=10.0)
        >>> route.gone(1), route.gone_s > 0
        (True, True)
        >>> route.back(now_s())
        >>> route.gone(1)
        False
    """

    def __init__(self, workers: int, proposed: Terms) -> None:
        self.proposed = proposed
        # A stage is a byte as msgpack.
        self._note = SharedNotes(1, _NOTE_NBYTES + len(proposed.registrations))
        self._began_s = now_s()
        self._gave_up_s, self._lost_s, self._heard_s, self._back_s, self._sent = SharedArray.together(
            np.zeros(workers), np.zeros(workers), np.zeros(workers), np.zeros(1), np.zeros((workers, 2))
        )

    # --- what was agreed on ---------------------------------------------------------------------------------------

    def agree(self, agreed: Agreed) -> None:
        """Tell the workers what the agent has agreed to."""
        terms = agreed.terms
        found = [
            terms.address.endpoint,
            terms.instance,
            terms.allowed,
            terms.options.window,
            agreed.reach,
            agreed.place,
        ]
        written = self._note.write(0, msgpack.packb(found, unicode_errors="surrogateescape"))
        assert written, "an address, a few names, two folders and a byte per source must fit"

    def agreed(self) -> Agreed | None:
        """What the agent has agreed to; None before it has."""
        packed = self._note.read(0)
        if not packed:  # nothing yet, or half written
            return None
        endpoint, instance, allowed, window, reach, place = msgpack.unpackb(packed, unicode_errors="surrogateescape")
        known = self.proposed
        address, options = replace(known.address, endpoint=endpoint), replace(known.options, window=window)
        terms = replace(known, address=address, instance=instance, allowed=tuple(allowed), options=options)
        return Agreed(terms, tuple(reach), (place[0], place[1]))

    # --- what workers have found out ------------------------------------------------------------------------------

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

    def count(self, worker: int, nbytes: int) -> None:
        """A sample of so many bytes has come from the agent to a worker; counted where a loader has several agents."""
        self._sent.array[worker] += 1, nbytes

    def sent(self) -> tuple[int, int]:
        """How many samples have been counted, and their bytes."""
        samples, nbytes = self._sent.array.sum(axis=0).tolist()
        return int(samples), int(nbytes)

    def left_s(self, worker: int) -> float:
        """For how long a worker may still wait in vain, s; not above 0 if it has done so for too long."""
        may_s = LOST_TIMES * self.proposed.options.resend_after_s + LOST_SHARE * (now_s() - self._began_s)
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

    def for_workers(self, workers: int, proposed: Terms | None = None) -> SharedRoute:
        """The same route for another number of workers: what one has found out, all have.

        Args:
            workers: their number.
            proposed: for a new agreement; None to keep the one that there is.
        """
        other = SharedRoute(workers, proposed or self.proposed)
        other._began_s = self._began_s
        other._gave_up_s.array[:] = self._gave_up_s.array.max()
        other._lost_s.array[:] = self._lost_s.array.max()
        other._back_s.array[:] = self._back_s.array
        other._sent.array[0] = self._sent.array.sum(axis=0)
        agreed = self.agreed() if proposed is None else None
        if agreed is not None:
            other.agree(agreed)
        return other
