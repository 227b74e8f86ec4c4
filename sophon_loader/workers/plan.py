"""The plan that all workers follow, in memory that the main process writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from sophon_loader.wire.limits import MAX_OPS

_NOTE_NBYTES = 1 << 14
"""Room for prices and calibration, which take 1 to 3 KB as msgpack; without them the plan is followed as it is."""


def possible_choice(choice: Choice, reach: int, allowed: Collection[str]) -> Choice:
    """What is asked for in place of `choice`: the same, or its value sent plainly, or an earlier one, or the file.

    The only place where a choice is repaired. The agent does its own part: it answers with less than was asked for.

    Args:
        choice: a policy's.
        reach: the last stage that the agent can reach for this sample.
        allowed: names of the encodings that may be used; `file` always is one.
    """
    if choice.cut <= reach and choice.encoding in allowed:
        return choice
    cut = min(choice.cut, reach)
    if cut == 0 or set(PLAIN).isdisjoint(allowed):
        return FILE
    return Choice(cut, "pixels")  # says a plan for both; the agent sends an array where the value is no image


class SharedPlan:
    """The current plan, in memory that the main process writes and loader workers read.

    A plan is a hint, so a worker that reads it while it changes still delivers the right samples.

    Args:
        samples: N.
        encodings: all names, in an order that every process of this loader has.

    Example:
        >>> plan = SharedPlan(1000, ("file", "pixels"))
        >>> plan.set(uniform_plan("all-off", 1000, Choice(5, "pixels"), "because"), None)
        >>> plan.choose([3, 4], reaches=[5, 2])
        [Choice(cut=5, encoding='pixels'), Choice(cut=2, encoding='pixels')]
    """

    def __init__(self, samples: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)
        self._chosen = SharedArray(np.zeros(samples, np.uint8))
        # What a choice of the plan comes to, by the stage that the agent can reach: sources may differ in that.
        self._cuts = SharedArray(np.zeros((MAX_OPS + 1, MAX_CHOICES), np.uint8))
        self._names = SharedArray(np.zeros((MAX_OPS + 1, MAX_CHOICES), np.uint8))
        self._note = SharedNotes(1, _NOTE_NBYTES)
        self._read: tuple[bytes, Pricing | None] = (b"", None)

    def set(self, plan: Plan, model: CostModel | None, allowed: Collection[str] | None = None) -> None:
        """Follow `plan` from now on.

        Args:
            plan: the choice of every sample.
            model: the costs behind the plan's prices; with it workers choose anew for every request, because a cost
                may depend on the epoch's crop.
            allowed: encodings that may be asked for, see `possible_choice`. None: all.
        """
        self._note.write(0, b"")
        names = frozenset(self._encodings if allowed is None else allowed).intersection(self._encodings)
        for position, choice in enumerate(plan.choices):
            self._set_choice(position, choice, names)
        self._chosen.array[:] = plan.chosen
        if model is not None and plan.prices is not None and model.choices == plan.choices:
            self._note.write(0, Pricing(plan.prices, model).to_bytes())

    def _set_choice(self, position: int, choice: Choice, allowed: Collection[str]) -> None:
        furthest = min(choice.cut, MAX_OPS)
        for reach in range(furthest + 1):
            possible = possible_choice(choice, reach, allowed)
            # The last row goes for all later stages, too.
            rows = slice(reach, None if reach == furthest else reach + 1)
            self._cuts.array[rows, position] = possible.cut
            self._names.array[rows, position] = self._encodings.index(possible.encoding)

    def pricing(self, profile: SampleProfile) -> Pricing | None:
        """What to choose by in place of the plan; None for a plan without prices, and while they are written."""
        note = self._note.read(0)
        if note is None:
            return None
        if note != self._read[0]:
            self._read = (note, Pricing.from_bytes(note, profile) if note else None)
        return self._read[1]

    def choose(
        self,
        indices: Sequence[int],
        reaches: Sequence[int],
        pricing: Pricing | None = None,
        shares: NDArray[np.float64] | None = None,
    ) -> list[Choice]:
        """The choice of each of n samples.

        Args:
            indices: int[n], of the samples.
            reaches: int[n], the last stage that the agent can reach for each.
            pricing: what `self.pricing` gave, to choose by; None to follow the plan.
            shares: with `pricing`, float64[n]: share of each picture that its first crop will read.
        """
        chosen = self._chosen.array[indices]
        if pricing is not None and shares is not None:
            chosen = pricing.revised(chosen, np.asarray(indices), shares)
        cuts, names = self._cuts.array[reaches, chosen], self._names.array[reaches, chosen]
        return [Choice(cut, self._encodings[name]) for cut, name in zip(cuts.tolist(), names.tolist(), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": (b"", None)}


@dataclass(frozen=True)
class Pricing:
    """What a worker chooses by.

    Args:
        prices: of the resources.
        model: what each choice takes of them; its choices are the plan's.
    """

    prices: Prices
    model: CostModel

    def revised(
        self, chosen: NDArray[np.uint8], indices: NDArray[Any], shares: NDArray[np.float64]
    ) -> NDArray[np.uint8]:
        """The cheapest choices of n samples; the planned ones where no costs are known.

        Args:
            chosen: uint8[n], as planned.
            indices: int[n], of the samples.
            shares: float64[n], share of each picture that its first crop will read.

        Returns:
            uint8[n], positions in the plan's choices.
        """
        known = self.model.knows(indices)
        planned = np.minimum(chosen, len(self.model.choices) - 1)  # may still be of a longer plan
        cheapest = self.prices.cheapest_each(*self.model.costs(indices, shares), planned=planned)
        revised: NDArray[np.uint8] = np.where(known, cheapest, chosen)
        return revised

    def to_bytes(self) -> bytes:
        """For the workers, which have the profile already."""
        prices = [self.prices.wire, self.prices.loader, self.prices.agent]
        packed: bytes = msgpack.packb([prices, self.model.to_plain()])
        return packed

    @staticmethod
    def from_bytes(data: bytes, profile: SampleProfile) -> Pricing:
        """The inverse of `to_bytes`.

        Args:
            data: what that gave.
            profile: of the same samples.
        """
        (wire, loader, agent), plain = msgpack.unpackb(data)
        return Pricing(Prices(wire=wire, loader=loader, agent=agent), CostModel.from_plain(profile, plain))
