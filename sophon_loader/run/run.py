"""A run: everything that is fixed once the pipelines are known and the agent was asked, until one of them changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sophon_loader.auto.shared_live import Live
from sophon_loader.batches.slots import Slots
from sophon_loader.cache.cache import Cache
from sophon_loader.datasets.pipelines import Pipeline, same_pipeline
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.device.tail import Split
from sophon_loader.encodings.catalogue import PLAIN, missing
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.measures.counters import Statistics
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.op import Op
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.software import software
from sophon_loader.pipeline.unknown import notes_on_local_ops
from sophon_loader.plans.profiler import Profiler
from sophon_loader.workers.dataset import OffloadedDataset
from sophon_loader.workers.shared_plan import SharedPlan
from sophon_loader.workers.source_steps import Steps

_NOTE_ON_INFO = (
    "{} may look at a picture's metadata (EXIF, ICC profile), so metadata is sent with each picture, and no file is "
    "cut to its crop; if the op looks at pixels alone, say so with register_op(..., reads_info=False)"
)


@dataclass(frozen=True)
class Run:
    """A run over one dataset, with its pipelines as they were when the run began.

    Args:
        pipelines: one per source of the dataset.
        collate_fn: the user's.
        split: parts of the pipelines that run with each sample, and with whole batches.
        agreement: with the agent; None without one, and before it has answered.
        profiler: measures this run.
        seed: of all its random numbers.
        software: of this process, as it was sent to the agent.
    """

    data: Offloadable
    pipelines: tuple[Pipeline, ...]
    collate_fn: Callable[[list[Any]], Any]
    split: Split
    agreement: Agreement | None
    profiler: Profiler
    seed: Seed
    software: dict[str, str] = field(default_factory=software)

    def is_of(
        self, pipelines: tuple[Pipeline, ...], collate_fn: Callable[[list[Any]], Any], seed: Seed, *, asked: bool
    ) -> bool:
        """Return True if these are still the ones that it began with.

        Args:
            pipelines: as they are now, one per source of the dataset.
            collate_fn: the user's.
            seed: as it is now; a state that is loaded may bring another.
            asked: True if there is an agent to ask, which knows this process's software.
        """
        same = self.collate_fn is collate_fn and self.seed == seed
        if same and asked:
            same = self.software == software()  # a setting of torch's may have changed
        return same and all(map(same_pipeline, self.pipelines, pipelines))

    def notes(self, of_agent: str) -> tuple[str, ...]:
        """Return notes on the run for the user.

        Args:
            of_agent: a note on the agent; "" for none.
        """
        notes = sorted({note for chain in self.split.chains for note in notes_on_local_ops(chain)})
        notes += [f"{name} is not offered: {why}" for name, why in missing().items() if name == "roi-jpeg"]
        unsaid = sorted({op.label for chain in self.split.chains for op in _without_word_on_info(chain)})
        notes += [_NOTE_ON_INFO.format(label) for label in unsaid]
        notes += self.split.notes
        notes += [of_agent] if of_agent else []
        if self.agreement is not None:
            if set(PLAIN).isdisjoint(self.agreement.encodings):
                notes.append("no value is sent as it is, because encodings= allows neither pixels nor array")
            notes += self.agreement.notes
        return (*notes, *self.profiler.notes)

    def dataset(
        self,
        plan: SharedPlan | None,
        statistics: Statistics,
        routes: Sequence[SharedRoute],
        live: Live | None = None,
        *,
        fused: bool = True,
        slots: Slots | None = None,
        cache: Cache | None = None,
    ) -> OffloadedDataset:
        """Return the dataset for the workers of this run.

        Args:
            plan: that they follow; None where nothing is planned.
            statistics: that they count into.
            routes: to the agents; empty if this run does without.
            live: prices and state that they follow if the agent chooses.
            fused: True if they may decode by our C.
            slots: memory in which they make samples for their batch; None for their own memory.
            cache: of files, on this host; None for none.
        """
        steps = [
            Steps(chain, 0, one.target_transform, len(one.chain))
            for chain, one in zip(self.split.chains, self.pipelines, strict=True)
        ]
        return OffloadedDataset(
            self.data,
            steps,
            plan,
            statistics,
            self.profiler.samples,
            routes,
            self.seed,
            live,
            self.pipelines,
            fused=fused,
            slots=slots,
            cache=cache,
        )


def _without_word_on_info(chain: Chain) -> list[Op]:
    """Return the ops that alone require metadata, without a statement that they look at it."""
    readers = chain.info_readers
    if chain.image_stages == len(chain) or chain.local_ops or any(op.reads_info for op in readers):
        return []
    return list(readers)
