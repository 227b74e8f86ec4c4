"""The plan that all workers follow, in memory that the main process writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.facts import FILE, MAX_CHOICES, Choice
from sophon_loader.decide.plan import Plan, Prices
from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.profiling.costs import CostModel
from sophon_loader.profiling.samples import SampleProfile
from sophon_loader.shared import SharedArray, SharedNotes

_NOTE_NBYTES = 1 << 14


def allowed_choice(choice: Choice, allowed: Collection[str]) -> Choice:
    """What is asked for in place of `choice`: the same, or its value sent plainly, or else the file.

    Args:
        allowed: names of encodings; `file` always is one.
    """
    if choice.encoding in allowed:
        return choice
    if choice.cut == 0 or set(PLAIN).isdisjoint(allowed):
        return FILE
    return Choice(choice.cut, "pixels")  # says a plan for both; the agent sends an array where the value is no image


class SharedPlan:
    """The current plan, in memory that the main process writes and loader workers read.

    A plan is a hint, so a worker that reads it while it changes still delivers the right samples.

    Args:
        samples: N.
        encodings: all names, in an order that every process of this loader has.
    """

    def __init__(self, samples: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)
        self._chosen = SharedArray(np.zeros(samples, np.uint8))
        self._cuts = SharedArray(np.zeros(MAX_CHOICES, np.uint8))
        self._names = SharedArray(np.zeros(MAX_CHOICES, np.uint8))
        self._note = SharedNotes(1, _NOTE_NBYTES)
        self._read: tuple[bytes, Pricing | None] = (b"", None)

    def set(self, plan: Plan, model: CostModel | None, allowed: Collection[str] | None = None) -> None:
        """Follow `plan` from now on.

        Args:
            allowed: encodings that may be asked for, see `allowed_choice`. None: all.
            model: the costs behind the plan's prices; with it workers choose anew for every request, because a cost
                may depend on the epoch's crop.
        """
        self._note.write(0, b"")
        names = frozenset(self._encodings if allowed is None else allowed).intersection(self._encodings)
        for position, choice in enumerate(plan.choices):
            possible = allowed_choice(choice, names)
            self._cuts.array[position] = possible.cut
            self._names.array[position] = self._encodings.index(possible.encoding)
        self._chosen.array[:] = plan.chosen
        if model is not None and plan.prices is not None and model.choices == plan.choices:
            self._note.write(0, Pricing(plan.prices, model).to_bytes())

    def choose(
        self, indices: Sequence[int], shares: Callable[[], NDArray[Any]], profile: SampleProfile
    ) -> list[Choice]:
        """The choice of each sample.

        Args:
            shares: gives the share of each picture that its first crop will read; only called if needed.
        """
        chosen = self._chosen.array[indices]
        pricing = self._pricing(profile)
        if pricing is not None:
            known = profile.nbytes[indices, 0] > 0
            costs = pricing.model.costs(np.asarray(indices), shares())
            planned = np.minimum(chosen, len(pricing.model.choices) - 1)  # may still be of a longer plan
            chosen = np.where(known, pricing.prices.cheapest_each(*costs, planned=planned), chosen)
        return [Choice(int(self._cuts.array[one]), self._encodings[self._names.array[one]]) for one in chosen]

    def _pricing(self, profile: SampleProfile) -> Pricing | None:
        """The prices and costs to choose by, read again only when they have changed; None while they are written."""
        note = self._note.read(0)
        if note is None:
            return None
        if note != self._read[0]:
            self._read = (note, Pricing.from_bytes(note, profile) if note else None)
        return self._read[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": (b"", None)}


@dataclass(frozen=True)
class Pricing:
    """What a worker chooses by."""

    prices: Prices
    model: CostModel

    def to_bytes(self) -> bytes:
        """For the workers, which have the profile already."""
        prices = [self.prices.wire, self.prices.loader, self.prices.agent]
        packed: bytes = msgpack.packb([prices, self.model.to_plain()])
        return packed

    @staticmethod
    def from_bytes(data: bytes, profile: SampleProfile) -> Pricing:
        """The inverse of `to_bytes`."""
        (wire, loader, agent), plain = msgpack.unpackb(data)
        return Pricing(Prices(wire=wire, loader=loader, agent=agent), CostModel.from_plain(profile, plain))
