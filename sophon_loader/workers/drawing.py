"""The random numbers of samples before they are asked for: a program takes the place of the pipeline's name."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sophon_loader.client.drawn_program import DrawnProgram, stages_of
from sophon_loader.client.session import Session
from sophon_loader.client.wanted import BatchId, Wanted
from sophon_loader.kinds.image.segments import shrunk
from sophon_loader.kinds.image.source import PictureFile, shape_of
from sophon_loader.order.tickets import Ticket
from sophon_loader.pipeline.described import begin
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.limits import MAX_HEADERS
from sophon_loader.workers.choosing import Chooser
from sophon_loader.workers.shared_headers import SharedHeaders
from sophon_loader.workers.source_steps import Steps


class Drawer:
    """Draws what samples do with their files up to where an agent is to go, by the headers of the files.

    Args:
        steps: one per source of the dataset.
        seed: of the run.
        headers: of the files.

    Example:
        >>> [one.drawn is not None for one in drawer.draw(chooser.wanted(ticket), epoch=0)]
        [True, True]
    """

    def __init__(self, steps: Sequence[Steps], seed: Seed, headers: SharedHeaders) -> None:
        self._steps = tuple(steps)
        self._seed = seed
        self._headers = headers
        self._asked: set[BatchId] = set()
        """The batches of whose files the headers have been asked for, as far as they are not done."""

    def lacking(self, tickets: Sequence[Ticket], chooser: Chooser) -> Iterator[list[Wanted]]:
        """The samples of some batches whose headers are neither known nor asked for, as many at a time as may be asked
        for at once. They count as asked for from now on.

        Args:
            tickets: of the batch that is due and of those behind it; all others are forgotten.
            chooser: knows their files.
        """
        self._asked.intersection_update([one.batch for one in tickets])
        found: dict[int, None] = {}
        for ticket in tickets:
            if ticket.batch not in self._asked:
                self._asked.add(ticket.batch)
                with contextlib.suppress(Exception):  # of the user's dataset: raised when that batch is due
                    found.update(dict.fromkeys(self._headers.unknown(chooser.positions(ticket))))
        samples = iter(found)
        while some := list(itertools.islice(samples, MAX_HEADERS)):
            yield [chooser.file(one) for one in some]

    def begin(self, lanes: Sequence[Session]) -> None:
        """Learn the headers that come by these connections from now on.

        Args:
            lanes: new ones, by which nothing has been asked for.
        """
        self._asked.clear()
        for lane in lanes:
            lane.header_questions.told = self._headers.learn_all

    def draw(self, wanted: Sequence[Wanted], epoch: int) -> list[Wanted]:
        """Add programs to the samples whose headers are known.

        Seeds the global generators: call it within `isolated()`.

        Args:
            wanted: of one batch.
            epoch: of its random numbers.
        """
        return [one if one.here or one.is_file else replace(one, drawn=self._drawn(one, epoch)) for one in wanted]

    def _drawn(self, wanted: Wanted, epoch: int) -> DrawnProgram | None:
        known = self._headers.of(wanted.sample)
        shape = None if known is None else shape_of(known[1])
        if known is None or shape is None:
            return None
        chain = self._steps[wanted.source].chain
        draw = self._seed.draw(epoch, wanted.sample, wanted.occurrence)
        begun = begin(chain, PictureFile(b"", shape), draw, furthest=wanted.cut or None)
        program = begun.program("").pack()
        return DrawnProgram(program, known[0], stages_of(begun.counts, shrunk(begun.steps)))
