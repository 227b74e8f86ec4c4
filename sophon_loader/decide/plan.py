"""The result of a policy: the choice of every sample, the reason, and the predicted cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import MAX_CHOICES, Choice
from sophon_loader.errors import PlanError

GOLDEN = np.uint32(2654435769)
"""Knuth's multiplicative hash: i * GOLDEN mod 2**32 walks the circle in golden-ratio steps, so any run of consecutive
indices covers it evenly. It is odd, so no two samples share a place."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The choice of every sample.

    Args:
        policy: name of the policy that made it.
        choices: the C choices that `chosen` points into.
        chosen: uint8[N], each < C; made read-only.
        reason: why, in one line a user can read.
        predicted: the epoch under the cost model, or None if the costs are not known.

    Raises:
        PlanError: `chosen` is not uint8[N] or points past `choices`.

    Example:
        >>> Plan("mine", (FILE, Choice(2, "pixels")), np.array([0, 1, 1], np.uint8), "because").counts()
        {Choice(cut=0, encoding='file'): 1, Choice(cut=2, encoding='pixels'): 2}
    """

    policy: str
    choices: tuple[Choice, ...]
    chosen: NDArray[np.uint8]
    reason: str
    predicted: EpochTime | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.choices) <= MAX_CHOICES:
            raise PlanError(f"choices must be 1 to {MAX_CHOICES}, got {len(self.choices)}; drop cuts or encodings")
        if self.chosen.dtype != np.uint8 or self.chosen.ndim != 1:
            raise PlanError(f"chosen must be uint8[N], got {self.chosen.dtype}{list(self.chosen.shape)}; convert it")
        if self.chosen.size and int(self.chosen.max()) >= len(self.choices):
            top = int(self.chosen.max())
            raise PlanError(f"chosen must be below {len(self.choices)}, got {top}; use positions in choices")
        frozen = self.chosen.view()
        frozen.flags.writeable = False
        object.__setattr__(self, "chosen", frozen)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.chosen)

    def counts(self) -> dict[Choice, int]:
        """Return the number of samples of each choice, without choices that no sample takes."""
        counted = np.bincount(self.chosen, minlength=len(self.choices))
        return {choice: int(n) for choice, n in zip(self.choices, counted, strict=True) if n}


def uniform_plan(policy: str, samples: int, choice: Choice, reason: str) -> Plan:
    """Return the plan in which all samples take one choice; nothing is predicted.

    Args:
        policy: name of the policy that makes it.
        samples: N >= 0.
        choice: the choice of all samples.
        reason: why, in one line a user can read.
    """
    return Plan(policy, (choice,), np.zeros(samples, dtype=np.uint8), reason)


def spread(samples: int, share: float) -> NDArray[np.bool_]:
    """Mark `round(share * samples)` samples, evenly over the indices and reproducibly.

    A larger share marks a superset, and any run of consecutive indices holds the share to within a few samples. Unlike
    every k-th sample, the marks have no period that a data set's own order could share.

    Args:
        samples: N >= 0.
        share: in [0, 1].

    Returns:
        bool[N].

    Raises:
        PlanError: `share` is outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise PlanError(f"share must be in [0, 1], got {share}; it is a share of the samples")
    marked = round(share * samples)
    if marked in (0, samples):
        return np.full(samples, marked > 0)
    places = np.arange(samples, dtype=np.uint32) * GOLDEN  # all distinct
    marks: NDArray[np.bool_] = places < np.partition(places, marked)[marked]
    return marks
