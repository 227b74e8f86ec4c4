"""From a reply to a sample: the value at its cut, the ops behind that, and the label."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sophon_loader.client.session import Terms
from sophon_loader.client.wanted import Reply
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.encodings.registry import decode
from sophon_loader.errors import EncodingError, MalformedMessage, add_note
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.pushdown import PartOfFile, run_from_file
from sophon_loader.pipeline.randomness import Draw, Seed, op_seed, seed_generators
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.wire.failures import error_of
from sophon_loader.workers.counters import Row
from sophon_loader.workers.files import agent_name, read_here
from sophon_loader.workers.steps import Steps


class Finisher:
    """Turns replies into samples. Opens files on this host; no socket.

    Args:
        data: the dataset, taken apart.
        steps: one per source of `data`.
        locations: of its files.
        profile: is told what the ops take, while it is recording.
        terms: agreed on with the agent; None without one.
        seed: of the run.

    Example:
        >>> image, label = finisher.finish(Reply(wanted, position=0), epoch=0, row=statistics.row(0))
    """

    def __init__(
        self,
        data: Offloadable,
        steps: Sequence[Steps],
        locations: Locations,
        profile: SampleProfile,
        terms: Terms | None,
        seed: Seed,
    ) -> None:
        self._data = data
        self._steps = tuple(steps)
        self._locations = locations
        self._profile = profile
        self._terms = terms
        self._seed = seed

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
            agent = "no agent" if self._terms is None else f"agent {agent_name(self._terms)}"
            note = f"sample {reply.wanted.sample}, key {reply.wanted.key!r}, {agent}"
            if reply.sample is not None and reply.sample.note:
                note += f"; before, the agent said: {reply.sample.note}"
            add_note(error, note)
            raise

    def _finish(self, reply: Reply, epoch: int, row: Row) -> tuple[Any, Any]:
        wanted = reply.wanted
        source, source_row = self._data.locate(wanted.sample)
        steps = self._steps[source]
        draw = self._seed.draw(epoch, wanted.sample, wanted.occurrence)
        since_s = time.thread_time()
        if reply.sample is None and reply.failed is None:
            value = self._run_file(self._read(reply, row), steps, draw)
        else:
            value = self._run_rest(self._received(reply, row), reply, steps, draw)
            _compare(reply, time.thread_time() - since_s, row)
        target = self._data.sources[source].target(source_row)
        if steps.target_transform is not None:
            seed_generators(GENERATORS, op_seed(draw, steps.target_position))
            target = steps.target_transform(target)
        return value, target

    def _read(self, reply: Reply, row: Row) -> bytes:
        """The file, from this host."""
        data = read_here(reply.wanted, self._locations, self._terms)
        row.count_file(len(data))
        terms = self._terms
        if terms is not None and not (terms.files_here and reply.wanted.is_file):
            row.add(fallbacks=1)  # it was meant to come from the agent
        return data

    def _received(self, reply: Reply, row: Row) -> Any:
        """The value at the reply's cut, from the agent."""
        if reply.failed is not None:
            raise error_of(
                reply.failed.failure,
                f"{reply.failed.text} (sample {reply.wanted.sample}, agent {agent_name(self._terms)}); the dataset "
                "and the export must hold the same files",
            )
        sample = reply.sample
        assert sample is not None
        if sample.cut > reply.wanted.cut:
            raise MalformedMessage(
                f"agent must not go past cut {reply.wanted.cut}, got {sample.cut} from {agent_name(self._terms)}"
            )
        try:
            value = decode(sample.encoding, sample.meta, reply.payload)
        except EncodingError as error:
            raise MalformedMessage(f"agent must send what {sample.encoding!r} is in docs/wire.md: {error}") from error
        asked_cut = 0 if reply.wanted.prices else reply.wanted.cut
        row.count(sample, asked_cut, reply.turnaround_s)
        return value

    def _run_rest(self, value: Any, reply: Reply, steps: Steps, draw: Draw) -> Any:
        """The ops that the agent has left, on what it has sent."""
        chain, sample = steps.chain, reply.sample
        assert sample is not None
        if isinstance(value, PartOfFile):
            return chain.run(value.data, 0, len(chain), draw, window=value.window)
        if sample.cut == 0:
            return self._run_file(value, steps, draw)
        return chain.run(value, sample.cut, len(chain), draw)

    def _run_file(self, data: Any, steps: Steps, draw: Draw) -> Any:
        """All ops, on a whole file."""
        chain = steps.chain
        if not self._profile.recording:
            return run_from_file(chain, data, len(chain), draw, keep_info=chain.keeps_info)
        measured = self._profile.measure(len(data), steps.reach)
        value = chain.run(data, 0, len(chain), draw, after=measured.after)
        self._profile.store(draw.index, measured)
        return value


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
