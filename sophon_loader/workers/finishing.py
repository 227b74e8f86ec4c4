"""From a reply to a sample: the value at its cut, the ops behind that, and the label."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sophon_loader.batches.slots import Slots
from sophon_loader.cache.worker_cache import WorkerCache
from sophon_loader.client.session import MAX_TOLD, Session, Terms
from sophon_loader.client.wanted import Reply, Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import (
    MalformedMessage,
    SampleDiffers,
    SophonError,
    add_note,
    note_foreign,
    raised_by_handler,
)
from sophon_loader.figures import counted
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.kinds.image.fused_picture import DecodeTally
from sophon_loader.kinds.image.opening import name_file
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.logs import log_line
from sophon_loader.measures.counters import Row
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.measures.worker_notes import looking
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.described import at_stage, go_on, run_from_file, run_from_part
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, Seed, op_seed, seed_generators
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.messages import Failure
from sophon_loader.workers.fallback import FallbackFiles, agent_name, read_here
from sophon_loader.workers.shared_headers import SharedHeaders
from sophon_loader.workers.source_steps import Steps
from sophon_loader.workers.verifying import SizeCheck, Verifier

_OF_BOTH_ENDS = frozenset({Failure.MISSING, Failure.OUTSIDE_EXPORT})
"""Refusals that say that the two ends do not hold the same files."""
log = logging.getLogger(__name__)


class Finisher:
    """Turns replies into samples. Opens files here; no socket, but where a reply is of no use (`FallbackFiles`).

    Args:
        data: the dataset, taken apart.
        steps: one per source of `data`.
        locations: of its files.
        profile: is told what the ops take, while it is recording; None for nothing.
        terms: agreed on with the agent; None without one.
        seed: of the run.
        fused: whether C of our own may decode.
        slots: where samples are made for their batch; None for in memory of their own.
        kept: of the files, on this host; None for none.
        headers: of the files, which learn from those that come; None to learn nothing.

    Example:
        >>> image, label = finisher.finish(Reply(wanted, position=0), epoch=0, row=statistics.row(0))
    """

    def __init__(
        self,
        data: Offloadable,
        steps: Sequence[Steps],
        locations: Locations,
        profile: SampleProfile | None,
        terms: Terms | None,
        seed: Seed,
        fused: bool = True,
        slots: Slots | None = None,
        kept: WorkerCache | None = None,
        headers: SharedHeaders | None = None,
    ) -> None:
        self._headers = headers
        self._kept = kept or WorkerCache(None, locations)
        self._data = data
        self._steps = tuple(steps)
        self._locations = locations
        self._profile = profile
        self._terms = terms
        self._seed = seed
        self._slots = slots
        self._place = None if slots is None else slots.lend
        self._tally = DecodeTally() if fused else None
        self._instead = FallbackFiles(locations, terms)
        self._sizes = SizeCheck(locations, self._instead)
        self._verifier = Verifier(0.0 if terms is None else terms.options.verify, self._instead, terms)
        self._told = 0
        """Answers of no use of which the log has told."""
        self._looked: set[int] = set()
        """Steps (their ids) of which it has been seen whether their values can cross."""

    def talk(self, session: Session | Fleet) -> None:
        """Replies come by this connection from now on."""
        self._instead.session = self._kept.contents.session = session

    def close(self) -> None:
        """Close this process's connections, if it has any."""
        self._instead.close()

    def finish(self, reply: Reply, epoch: int, row: Row) -> tuple[Any, Any]:
        """The sample: its value behind the last op, and its label.

        Seeds the global generators: call it within `isolated()`.

        Args:
            reply: what became of the request.
            epoch: of its batch.
            row: counts it.

        Raises:
            Exception: whatever an op raises, or a SophonError; with a note that names the sample.
        """
        try:
            return self._finish(reply, epoch, row)
        except Exception as error:
            name_file(error, self._locations.path_here(reply.wanted.sample) or reply.wanted.key)
            answered = reply.sample is not None or reply.failed is not None
            name = self._instead.who() if answered else agent_name(self._terms)
            agent = "no agent" if self._terms is None else f"agent {name}"
            note = f"sample {reply.wanted.sample}, key {reply.wanted.key!r}, {agent}"
            if reply.unusable:
                note += f"; its answer was unusable: {reply.unusable}"
            if reply.sample is not None and reply.sample.note:
                note += f"; the agent had said: {reply.sample.note}"
            add_note(error, note)
            # Before anybody hears of it: the process may be killed then, and the next run must not be served these.
            if isinstance(error, SampleDiffers) and (withdrawn := self._kept.withdraw_sent()):
                add_note(error, withdrawn)
            raise

    def _finish(self, reply: Reply, epoch: int, row: Row) -> tuple[Any, Any]:
        wanted = reply.wanted
        if self._slots is not None:
            self._slots.position = reply.position
        source, source_row = self._data.locate(wanted.sample)
        steps = self._steps[source]
        if wanted.in_cache:
            row.add(in_cache=1)
        draw = self._seed.draw(epoch, wanted.sample, wanted.occurrence)
        if reply.sample is None:
            value = self._run_file(self._read(reply, row), steps, draw, row)
        else:
            value = self._from_agent(reply, steps, draw, row)
        try:
            target = self._data.sources[source].target(source_row)
            if steps.target_transform is not None:
                seed_generators(GENERATORS, op_seed(draw, steps.target_position))
                target = steps.target_transform(target)
        except Exception as error:
            note_foreign(error, "in the label of the sample")
            raise
        return value, target

    def _read(self, reply: Reply, row: Row) -> bytes:
        """The file, in place of an answer."""
        wanted, terms, cached = reply.wanted, self._terms, False
        data: bytes | None
        if wanted.in_cache and wanted.here and self._locations.path_here(wanted.sample) is None:
            data, cached = self._copy(wanted)
        elif reply.failed is None and not reply.unusable:
            try:
                data, cached = read_here(wanted, self._locations, terms, self._kept, reply.why)
            except OSError as error:
                if raised_by_handler(error) or not (wanted.here and self._kept.serves):
                    raise
                data = None  # there is a copy, but nobody can tell whether it is the file of today
        else:
            data = self._read_instead(reply)
        if data is None:
            data = self._instead.there(wanted)
        elif cached:
            row.add(cached=1)
        elif terms is not None and not wanted.here:
            row.add(fallbacks=1, refused=reply.failed is not None)  # it was meant to come from the agent
        row.count_file(len(data))
        return data

    def _copy(self, wanted: Wanted) -> tuple[bytes | None, bool]:
        """A file that is not mounted, and whether it is from the cache; else it is from the agent, and is there from
        now on, if it can be. None if that agent does not send it.
        """
        if (data := self._kept.copy(wanted.sample)) is not None:
            return data, True
        asked = replace(wanted, cut=0, encoding="file", prices=None, before=self._kept.contents.looked())
        with contextlib.suppress(SophonError):
            sample, payload = self._instead.again(asked, epoch=0)
            value = decode(sample.encoding, sample.meta, payload)
            if not sample.cut and not isinstance(value, PartOfFile):
                self._kept.keep(asked, value)
                return bytes(value), False
        return None, False

    def _read_instead(self, reply: Reply) -> bytes | None:
        """The file from this host, in place of an answer of no use; None if this host does not have it."""
        failed = reply.failed
        data = None if failed is not None and failed.failure in _OF_BOTH_ENDS else self._instead.here(reply.wanted)
        if failed is None:
            return data
        text = f"{failed.text} (sample {reply.wanted.sample}, agent {self._instead.name()})"
        if data is None:
            raise error_of(failed.failure, f"{text}; both hosts must hold the same files")
        self._tell("file read here", sample=reply.wanted.sample, agent=self._instead.name(), reason=failed.text)
        return data

    def _tell(self, event: str, **facts: object) -> None:
        self._told += 1
        if self._told <= MAX_TOLD:
            log.warning(log_line(event, **facts))

    def _from_agent(self, reply: Reply, steps: Steps, draw: Draw, row: Row) -> Any:
        """All ops, some of which the agent has run; on the file, if nothing can be made of what it has sent."""
        sample = reply.sample
        assert sample is not None
        since_s = time.thread_time()
        self._kept.contents.looked()  # an agent that was started anew may have other files than the copies
        try:
            stage, value = self._received(reply, steps, draw, row)
        except MalformedMessage as error:
            name_file(error, reply.wanted.key)
            row.add(malformed=1)
            self._tell("answer unusable", sample=reply.wanted.sample, reason=error)
            unusable = replace(reply, sample=None, payload=b"", unusable=str(error))
            try:
                return self._run_file(self._read(unusable, row), steps, draw, row)
            except Exception as second:
                add_note(second, f"the agent's answer was unusable: {error}")
                raise
        self._sizes.compare(reply, self._instead.name())
        row.count(sample, 0 if reply.wanted.prices else reply.wanted.cut, reply.turnaround_s)
        chain = steps.chain
        if not stage:
            self._kept.keep(reply.wanted, value)
            if self._headers is not None:
                if reply.wanted.program_refused:
                    self._headers.leave_out(reply.wanted.sample)
                self._headers.learn_from(reply.wanted.sample, value)
        value = go_on(chain, value, stage, draw, self._place) if stage else self._run_file(value, steps, draw, row)
        _compare(reply, time.thread_time() - since_s, row)
        if self._verifier.due(draw) or self._verifier.is_first(reply, row):
            self._verifier.verify(reply, chain, draw, row)
        return value

    def _received(self, reply: Reply, steps: Steps, draw: Draw, row: Row) -> tuple[int, Any]:
        """A stage, and the value that the agent has sent at it; of a part of the file, what it was cut out for.

        Raises:
            MalformedMessage: it has sent something else.
        """
        sample, agent = reply.sample, self._instead.name()
        assert sample is not None
        if sample.cut > reply.wanted.cut:
            raise MalformedMessage(
                f"agent must run at most {counted(reply.wanted.cut, 'op')}, got {sample.cut} from {agent}"
            )
        try:
            value = decode(sample.encoding, sample.meta, reply.payload)
            if isinstance(value, PartOfFile):
                with self._decoding(row):
                    return run_from_part(steps.chain, value, draw, self._tally)
            value = at_stage(value, sample.cut)
        except Exception as error:  # the boundary to what somebody else has made
            if raised_by_handler(error):
                raise
            raise MalformedMessage(
                f"agent {agent} must send {sample.encoding!r} as docs/wire.md describes it, got: {error}"
            ) from error
        return sample.cut, value

    def _run_file(self, data: Any, steps: Steps, draw: Draw, row: Row) -> Any:
        """All ops, on a whole file."""
        chain, profile = steps.chain, self._profile
        look = self._looking(steps, row)
        if profile is None or not profile.recording:
            return self._run_ops(data, chain, draw, row, look)
        measured = profile.measure(len(data), steps.reach)

        def after(stage: int, value: Any) -> None:
            measured.after(stage, value)
            if look is not None:
                look(stage, value)

        value = self._run_ops(data, chain, draw, row, after)
        profile.store(draw.index, measured)
        return value

    def _run_ops(self, data: Any, chain: Chain, draw: Draw, row: Row, after: Callable[[int, Any], None] | None) -> Any:
        """All ops, on a whole file; see `Chain.run`."""
        if after is not None and self._tally is None:
            return chain.run(data, 0, len(chain), draw, after=after)
        place = self._place if after is None else None
        with self._decoding(row):
            return run_from_file(chain, data, len(chain), draw, after=after, tally=self._tally, place=place)

    @contextlib.contextmanager
    def _decoding(self, row: Row) -> Iterator[None]:
        """Count a picture that is decoded within, once, by who has decoded it."""
        tally = self._tally
        if tally is not None:
            tally.ours = False
        yield
        if tally is not None:
            row.add(fused=tally.ours, unfused=not tally.ours)

    def _looking(self, steps: Steps, row: Row) -> Callable[[int, Any], None] | None:
        """What looks at one sample of each source whether its values can cross; None once that has been done."""
        if self._terms is None or not steps.reach or id(steps) in self._looked:
            return None

        def found(text: str) -> None:
            self._looked.add(id(steps))
            if text:
                row.uncarried(text)

        return looking(steps.chain, steps.reach, found)


def _compare(reply: Reply, loader_s: float, row: Row) -> None:
    """Set what was left to the loader beside the agent's estimate, if the agent has told one.

    Args:
        loader_s: CPU seconds that it took here.
    """
    sample = reply.sample
    if sample is None or not sample.offers:
        return
    for offer in sample.offers:
        if (offer.cut, offer.encoding) == (sample.cut, sample.encoding):
            if len(sample.op_s) > 1:  # those that the agent has done nothing for are counted as files
                work_s = sum(sample.op_s[1:])
                row.add(weighed=1, weighed_rest_s=offer.rest_s, estimated_work_s=offer.agent_s, weighed_work_s=work_s)
            if sample.cut == 0:  # of what is little, most is none of the ops
                row.add(compared_rest_s=offer.rest_s, compared_loader_s=loader_s)
