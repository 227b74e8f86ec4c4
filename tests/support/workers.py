"""What loader workers run, put together without a loader, an agent or a worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.fleet.shared_route import Agreed, SharedRoute
from sophon_loader.measures.counters import Statistics
from sophon_loader.measures.sample_profile import SampleProfile
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.workers.choosing import Chooser
from sophon_loader.workers.dataset import OffloadedDataset
from sophon_loader.workers.finishing import Finisher
from sophon_loader.workers.shared_plan import SharedPlan
from sophon_loader.workers.source_steps import Steps


@dataclass(frozen=True)
class Parts:
    """All that the workers of a loader share."""

    data: Offloadable
    steps: tuple[Steps, ...]
    locations: Locations
    plan: SharedPlan
    statistics: Statistics
    profile: SampleProfile
    terms: Terms | None
    seed: Seed

    @property
    def chooser(self) -> Chooser:
        return Chooser(self.data, self.steps, self.locations, self.plan)

    @property
    def finisher(self) -> Finisher:
        return Finisher(self.data, self.steps, self.locations, self.profile, self.terms, self.seed)

    @property
    def dataset(self) -> OffloadedDataset:
        return OffloadedDataset(
            self.data,
            self.steps,
            self.plan,
            self.statistics,
            self.profile,
            self.routes,
            self.seed,
        )

    @property
    def routes(self) -> list[SharedRoute]:
        if self.terms is None:
            return []
        route = SharedRoute(1, self.terms)
        route.agree(Agreed(self.terms, tuple(one.reach for one in self.steps), self.locations.place))
        return [route]


def parts_of(dataset: Any, terms: Terms | None = None, reach: Sequence[int] | None = None) -> Parts:
    """The parts for a dataset.

    Args:
        terms: agreed on with an agent; None for none.
        reach: per source, the last stage that it reaches; None for all that are describable, or none without an agent.
    """
    data = offloadable(dataset)
    chains = [chain_of(owner.transform) for owner in data.owners]
    if reach is None:
        reach = [0 if terms is None else chain.describable for chain in chains]
    steps = tuple(
        Steps(chain, furthest, owner.target_transform, len(chain))
        for chain, furthest, owner in zip(chains, reach, data.owners, strict=True)
    )
    names = encoding_names()
    return Parts(
        data=data,
        steps=steps,
        locations=Locations(data, None if terms is None else terms.address),
        plan=SharedPlan(len(data), names),
        statistics=Statistics(1, names),
        profile=SampleProfile(len(data), max(len(chain) for chain in chains)),
        terms=terms,
        seed=Seed(1) if terms is None else terms.seed,
    )
