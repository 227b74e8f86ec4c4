"""The plan that all workers follow, in memory that the main process writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from sophon_loader.decide.facts import FILE, MAX_CHOICES, Choice
from sophon_loader.decide.plan import Plan
from sophon_loader.encodings.catalogue import PLAIN
from sophon_loader.host.shared import SharedArray
from sophon_loader.wire.limits import MAX_OPS


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
        >>> plan.set(uniform_plan("all-off", 1000, Choice(5, "pixels"), "because"))
        >>> plan.choose([3, 4], reaches=[5, 2])
        [Choice(cut=5, encoding='pixels'), Choice(cut=2, encoding='pixels')]
    """

    def __init__(self, samples: int, encodings: Sequence[str]) -> None:
        self._encodings = tuple(encodings)
        self._chosen, self._cuts, self._names = SharedArray.together(
            np.zeros(samples, np.uint8),
            # What a choice of the plan comes to, by the stage that the agent can reach: sources may differ in that.
            np.zeros((MAX_OPS + 1, MAX_CHOICES), np.uint8),
            np.zeros((MAX_OPS + 1, MAX_CHOICES), np.uint8),
        )

    def set(self, plan: Plan, allowed: Collection[str] | None = None) -> None:
        """Follow `plan` from now on.

        Args:
            plan: the choice of every sample.
            allowed: encodings that may be asked for, see `possible_choice`. None: all.
        """
        names = frozenset(self._encodings if allowed is None else allowed).intersection(self._encodings)
        for position, choice in enumerate(plan.choices):
            self._set_choice(position, choice, names)
        self._chosen.array[:] = plan.chosen

    def _set_choice(self, position: int, choice: Choice, allowed: Collection[str]) -> None:
        furthest = min(choice.cut, MAX_OPS)
        for reach in range(furthest + 1):
            possible = possible_choice(choice, reach, allowed)
            # The last row goes for all later stages, too.
            rows = slice(reach, None if reach == furthest else reach + 1)
            self._cuts.array[rows, position] = possible.cut
            self._names.array[rows, position] = self._encodings.index(possible.encoding)

    def choose(self, indices: Sequence[int], reaches: Sequence[int]) -> list[Choice]:
        """The choice of each of n samples.

        Args:
            indices: int[n], of the samples.
            reaches: int[n], the last stage that the agent can reach for each.
        """
        chosen = self._chosen.array[indices]
        cuts, names = self._cuts.array[reaches, chosen], self._names.array[reaches, chosen]
        return [Choice(cut, self._encodings[name]) for cut, name in zip(cuts.tolist(), names.tolist(), strict=True)]
