"""What a loader worker asks for: the choice of every sample of a batch, as planned or anew at the plan's prices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sophon_loader.client.requests import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.plan import Prices
from sophon_loader.pipeline.chain import Located
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.wire.messages import CHEAPEST
from sophon_loader.workers.plan import SharedPlan
from sophon_loader.workers.steps import Steps
from sophon_loader.workers.tariff import Dealer, SharedTariff
from sophon_loader.workers.tickets import Ticket


class Chooser:
    """Turns tickets into what is wanted. Reads shared memory; no socket, no file.

    Args:
        data: the dataset, taken apart.
        steps: one per source of `data`.
        locations: of its files.
        plan: to follow.
        profile: of its samples, which prices need.
        seed: of the run.
        tariff: what requests go out at where the agent chooses; None where a plan says what each sample gets.

    Example:
        >>> ticket = Ticket(BatchId(iteration=1, epoch=0, number=0), indices=[4, 2])
        >>> [one.key for one in chooser.wanted(ticket)]
        ['cat/5.jpg', 'cat/3.jpg']
    """

    def __init__(
        self,
        data: Offloadable,
        steps: Sequence[Steps],
        locations: Locations,
        plan: SharedPlan,
        profile: SampleProfile,
        seed: Seed,
        tariff: SharedTariff | None = None,
    ) -> None:
        self._dealer = None if tariff is None else Dealer(tariff)
        self._data = data
        self._steps = tuple(steps)
        self._locations = locations
        self._plan = plan
        self._profile = profile
        self._seed = seed

    def wanted(self, ticket: Ticket) -> list[Wanted]:
        """What to ask for, sample by sample, in the ticket's order.

        May seed the global generators: call it within `isolated()`.

        Raises:
            IndexError: the sampler has given an index that the dataset does not have.
        """
        indices = [self._checked(index) for index in ticket.indices]
        occurrences = ticket.occurrences or [0] * len(indices)
        sources: list[int] = self._data.source_of.array[indices].tolist()
        if self._dealer is not None:
            dealt = self._dealer.batch(len(indices))
            return list(map(self._open, sources, indices, occurrences, dealt))
        located: Sequence[Located | None] = [None] * len(indices)
        shares = None
        pricing = self._plan.pricing(self._profile)
        if pricing is not None:
            # Only prices ask for the regions beforehand; without any they are drawn when the samples are finished.
            located = [
                self._located(source, ticket.batch.epoch, index, occurrence)
                for source, index, occurrence in zip(sources, indices, occurrences, strict=True)
            ]
            shares = np.array([1.0 if one is None else one.share for one in located])
        reaches = [self._steps[source].reach for source in sources]
        choices = self._plan.choose(indices, reaches, pricing, shares)
        return [
            Wanted(source, index, choice.cut, choice.encoding, self._locations.key_in_export(index), occurrence, where)
            for source, index, choice, occurrence, where in zip(
                sources, indices, choices, occurrences, located, strict=True
            )
        ]

    def _open(self, source: int, index: int, occurrence: int, prices: Prices | None) -> Wanted:
        """A sample whose choice is left to the agent, or its file."""
        key = self._locations.key_in_export(index)
        if prices is None:
            return Wanted(source, index, 0, "file", key, occurrence)
        asked = (prices.wire, prices.agent, prices.loader)
        return Wanted(source, index, self._steps[source].reach, CHEAPEST, key, occurrence, prices=asked)

    def _checked(self, index: int) -> int:
        if not -len(self._data) <= index < len(self._data):
            raise IndexError(f"index of the sampler must be below {len(self._data)}, got {index}")
        return index % len(self._data)

    def _located(self, source: int, epoch: int, index: int, occurrence: int) -> Located | None:
        """What the first crop will read of a picture; None if there is no crop, or the picture's size is not known."""
        chain = self._steps[source].chain
        width, height = self._profile.sides[index].tolist()
        if chain.crop is None or not (width and height):
            return None
        return chain.located(width, height, self._seed.draw(epoch, index, occurrence))
