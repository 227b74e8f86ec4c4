"""What all processes of a loader know of an agent, in memory that outlives the workers: what was agreed on with it,
who has given it up, how long it has been waited for in vain, and when it was back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgpack
import numpy as np
from numpy.typing import NDArray

from sophon_loader.client.session import Terms
from sophon_loader.fleet.lacking import NOTHING, nbytes_for
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


class _Memory:
    """Of some routes, in two pieces however many these are: a descriptor for each piece, in each process."""

    def __init__(self, routes: int, workers: int, note_nbytes: int, lacking: SharedArray | None) -> None:
        self.notes = SharedNotes(routes, note_nbytes)
        self.lacking = lacking
        """Per route the bits of `Lacking`; None where nobody may lack a sample. Untouched while nobody does."""
        # Each number has one writer: that of a worker this one, all others the main process.
        (
            self.gave_up_s, self.lost_s, self.heard_s, self.forgiven_s,
            self.sent, self.back_s, self.awaited_s, self.version,
        ) = SharedArray.together(
            *(np.zeros((routes, workers)) for _ in range(4)),
            np.zeros((routes, workers, 2)),
            np.zeros(routes),
            np.zeros(1),
            np.zeros(1, np.int64),
        )  # fmt: skip


class SharedRoute:
    """The way to one agent, as the main process and the workers see it.

    All times are of one clock, which processes of a host share. Every place has one writer: a worker its own, the main
    process what was agreed on and `back_s`. So neither can undo what the other has found out meanwhile, and what is
    half written is not read.

    Args:
        workers: their number, at least 1.
        proposed: what is known of the terms before the agent has agreed to them.
        among: routes beside which it lies in memory, and its number among them; None to lie alone.
        samples: of the dataset, where the agent may lack some because other agents have them; else 0.

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

    def __init__(
        self, workers: int, proposed: Terms, among: tuple[_Memory, int] | None = None, samples: int = 0
    ) -> None:
        self.proposed = proposed
        self._memory, self._row = among or (_Memory(1, workers, _note_nbytes(proposed), _bits(1, samples)), 0)
        self._began_s = now_s()
        self._sent_before = 0, 0
        """Counted when the place was another agent's."""
        self._overcome = 0
        """Losses behind which the agent has answered; the main process counts them, which asks it."""
        self._freed_s = 0.0
        """When the place was another agent's last."""

    @staticmethod
    def several(count: int, workers: int, proposed: Terms, samples: int = 0) -> list[SharedRoute]:
        """Places for agents that come and go while workers run: each is the way to whoever has agreed there last.

        Args:
            count: their number, at least 1.
            workers: of the loader.
            proposed: to any of the agents.
            samples: of the dataset.
        """
        memory = _Memory(count, workers, _note_nbytes(proposed), _bits(count, samples))
        return [SharedRoute(workers, proposed, (memory, row)) for row in range(count)]

    @property
    def is_first(self) -> bool:
        """Whether it is the first of those that lie beside each other, which have one `version`."""
        return self._row == 0

    @property
    def version(self) -> int:
        """Another number whenever an agent has agreed or left, here or at a place beside this one."""
        return int(self._memory.version.array[0])

    # --- what was agreed on ---------------------------------------------------------------------------------------

    def agree(self, agreed: Agreed) -> None:
        """Tell the workers what the agent has agreed to."""
        terms = agreed.terms
        found = [
            terms.address.endpoint,
            terms.address.export,
            terms.address.folder,
            terms.instance,
            terms.allowed,
            terms.options.window,
            terms.known,
            terms.by_programs,
            agreed.reach,
            agreed.place,
        ]
        self._write(msgpack.packb(found, unicode_errors="surrogateescape"))

    def _write(self, packed: bytes) -> None:
        written = self._memory.notes.write(self._row, packed)
        assert written, "an address, a few names, some folders and a byte per source must fit"
        self._memory.version.array[0] += 1  # behind it: who sees that finds what is written

    def free(self) -> None:
        """The agent has left: whoever has it asks it for nothing more, and the place may be another's."""
        memory = self._memory
        self._write(b"")
        self._sent_before = self._counted()
        memory.forgiven_s.array[self._row] = memory.lost_s.array[self._row]
        self._forget_lacking()
        self._overcome, self._freed_s = 0, now_s()
        memory.back_s.array[self._row] = self._freed_s

    def agreed(self) -> Agreed | None:
        """What the agent has agreed to; None before it has."""
        packed = self._memory.notes.read(self._row)
        if not packed:  # nothing yet, or half written
            return None
        endpoint, export, folder, instance, allowed, window, pipelines, by_programs, reach, place = msgpack.unpackb(
            packed, unicode_errors="surrogateescape"
        )
        known = self.proposed
        address = replace(known.address, endpoint=endpoint, export=export, folder=folder)
        options = replace(known.options, window=window)
        terms = replace(
            known,
            address=address,
            instance=instance,
            allowed=tuple(allowed),
            options=options,
            known=tuple(pipelines),
            by_programs=by_programs,
        )
        return Agreed(terms, tuple(reach), (place[0], place[1]))

    # --- what workers have found out ------------------------------------------------------------------------------

    def gone(self, worker: int) -> bool:
        """Whether a worker should do without the agent: it gave it up, or another did that it has not heard since.

        So one worker waits for an agent that has gone, and not each of them in turn.
        """
        if self._memory.gave_up_s.array[self._row, worker] > self._memory.back_s.array[self._row]:
            return True
        return bool(self.gone_s > self._memory.heard_s.array[self._row, worker])

    def hear(self, worker: int) -> None:
        """A sample from the agent has come to a worker."""
        self._memory.heard_s.array[self._row, worker] = now_s()

    def count(self, worker: int, nbytes: int) -> None:
        """A sample of so many bytes has come from the agent to a worker; counted where a loader has several agents."""
        self._memory.sent.array[self._row, worker] += 1, nbytes

    def sent(self) -> tuple[int, int]:
        """How many samples have been counted, and their bytes."""
        (samples, nbytes), before = self._counted(), self._sent_before
        return samples - before[0], nbytes - before[1]

    def _counted(self) -> tuple[int, int]:
        samples, nbytes = self._memory.sent.array[self._row].sum(axis=0).tolist()
        return int(samples), int(nbytes)

    def left_s(self, worker: int) -> float:
        """For how long a worker may still wait in vain, s; not above 0 if it has done so for too long."""
        may_s = LOST_TIMES * self.proposed.options.resend_after_s + LOST_SHARE * (now_s() - self._began_s)
        memory = self._memory
        return float(may_s - memory.lost_s.array[self._row, worker] + memory.forgiven_s.array[self._row, worker])

    def note(self, worker: int, gave_up_s: float, lost_s: float) -> None:
        """What a worker has found out.

        Args:
            worker: its number.
            gave_up_s: when it gave the agent up last; 0 if it has not.
            lost_s: for how long it has waited in vain since it noted this last, s.
        """
        gave_ups_s = self._memory.gave_up_s.array[self._row]
        gave_ups_s[worker] = max(gave_up_s, gave_ups_s[worker])
        self._memory.lost_s.array[self._row, worker] += lost_s

    @property
    def gone_s(self) -> float:
        """When a worker gave the agent up last; 0 if it has answered since."""
        gave_up_s = float(self._memory.gave_up_s.array[self._row].max())
        return gave_up_s if gave_up_s > self._memory.back_s.array[self._row] else 0.0

    @property
    def lost_s(self) -> float:
        """When a worker gave the agent up last, whether or not it has answered since; 0 if none ever has."""
        gave_up_s = float(self._memory.gave_up_s.array[self._row].max())
        return gave_up_s if gave_up_s > self._freed_s else 0.0

    @property
    def losses(self) -> int:
        """How often workers have given the agent up, as the main process knows it; once until it has answered again."""
        return self._overcome + (self.gone_s > 0)

    @property
    def back_s(self) -> float:
        """When the agent was asked whether it is back and then said so; 0 if it never had to be."""
        return float(self._memory.back_s.array[self._row])

    def back(self, asked_s: float) -> None:
        """The agent has answered.

        Args:
            asked_s: what it was asked at that time.
        """
        self._forget_lacking()
        losses = self.losses
        self._memory.back_s.array[self._row] = asked_s
        if not self.gone_s:
            self._overcome = losses

    @property
    def awaited_s(self) -> float:
        """For how long the training has waited for batches; of the first of the routes that lie beside each other."""
        return float(self._memory.awaited_s.array[0])

    @awaited_s.setter
    def awaited_s(self, seconds: float) -> None:
        self._memory.awaited_s.array[0] = seconds

    @property
    def lacking(self) -> NDArray[np.uint8]:
        """Which samples the agent lacks, as of `fleet.lacking.Lacking`."""
        bits = self._memory.lacking
        return NOTHING if bits is None else bits.array[self._row]

    @property
    def lacked(self) -> int:
        """How many samples the agent is known to lack."""
        bits = self.lacking
        return int(np.bincount(bits[:-1], minlength=256) @ _SET) if len(bits) and bits[-1] else 0

    def _forget_lacking(self) -> None:
        """Another agent is there, or perhaps the same with more files."""
        bits = self.lacking
        if len(bits) and bits[-1]:
            bits[:] = 0

    def for_workers(self, workers: int, proposed: Terms | None = None) -> SharedRoute:
        """The same route for another number of workers: what one has found out, all have.

        Args:
            workers: their number.
            proposed: for a new agreement; None to keep the one that there is.
        """
        other = SharedRoute(workers, proposed or self.proposed)
        other._memory.lacking = self._memory.lacking
        return self._copied(other, keep=proposed is None)

    @staticmethod
    def all_for_workers(
        routes: Sequence[SharedRoute], workers: int, proposed: Terms | None = None
    ) -> list[SharedRoute]:
        """As `for_workers`, of routes that lie beside each other."""
        others = SharedRoute.several(len(routes), workers, proposed or routes[0].proposed)
        others[0]._memory.lacking = routes[0]._memory.lacking
        return [one._copied(other, keep=proposed is None) for one, other in zip(routes, others, strict=True)]

    def _copied(self, other: SharedRoute, *, keep: bool) -> SharedRoute:
        """Have another route know what this one does; `keep` for what was agreed on, too."""
        mine, its, row = self._memory, other._memory, self._row
        other._began_s, other._overcome, other._freed_s = self._began_s, self._overcome, self._freed_s
        its.gave_up_s.array[other._row] = mine.gave_up_s.array[row].max()
        its.lost_s.array[other._row] = (mine.lost_s.array[row] - mine.forgiven_s.array[row]).max()
        its.back_s.array[other._row] = mine.back_s.array[row]
        its.sent.array[other._row, 0] = self.sent()
        if keep and (agreed := self.agreed()) is not None:
            other.agree(agreed)
        return other


_SET = np.array([number.bit_count() for number in range(256)])
"""Bits that are set in each byte."""


def _bits(routes: int, samples: int) -> SharedArray | None:
    return SharedArray.zeros((routes, nbytes_for(samples)), np.uint8) if samples else None


def _note_nbytes(proposed: Terms) -> int:
    return _NOTE_NBYTES + 2 * len(proposed.registrations)  # a stage is a byte as msgpack
