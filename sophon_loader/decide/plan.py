"""What a policy returns: the choice of every sample, why, and what it should cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import MAX_CHOICES, Choice
from sophon_loader.errors import PlanError

GOLDEN = np.uint32(2654435769)
"""Knuth's multiplicative hash: i * GOLDEN mod 2**32 walks the circle in golden-ratio steps, so any run of consecutive
indices covers it evenly. Odd, hence a bijection: no two samples share a place."""
KEEP = 0.01
"""A planned choice is kept unless another one is cheaper by more than this share of its cost. Without it, samples that
tie at the plan's prices, which a plan shares out over their choices, would all go one way."""


@dataclass(frozen=True)
class Prices:
    """What one unit of each resource is worth, >= 0; only their proportions decide.

    A policy that plans by prices scales them so that the plan's whole bill is its predicted seconds. All zero
    means that nothing is gained by offloading: every choice costs nothing, and the first one wins.

    Args:
        wire: seconds per byte.
        loader: seconds per CPU second in the loader.
        agent: seconds per CPU second at the agent.

    Raises:
        PlanError: a price is negative, infinite or NaN.

    Example:
        >>> Prices(wire=1.0, loader=10.0, agent=100.0).cheapest_each([[50, 20]], [[0, 0.1]], [[1, 1]])
        array([1], dtype=uint8)
    """

    wire: float
    loader: float
    agent: float

    def __post_init__(self) -> None:
        for name in ("wire", "loader", "agent"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlanError(f"{name} must be >= 0 and finite, got {value}; plan again from fresh rates")

    def cheapest_each(
        self,
        wire_bytes: ArrayLike,
        agent_s: ArrayLike,
        loader_s: ArrayLike,
        planned: NDArray[np.uint8] | None = None,
    ) -> NDArray[np.uint8]:
        """The cheapest choice of each of N samples; of equal ones, the first.

        Where samples tie, a plan shares them out over the tied choices. Whoever chooses anew should therefore pass
        what was planned: it is kept unless another choice is cheaper by more than `KEEP`.

        Args:
            wire_bytes: float[N, C], bytes; `inf` or NaN marks a choice that the sample does not have.
            agent_s: float[N, C], CPU seconds at the agent.
            loader_s: float[N, C], CPU seconds in the loader.
            planned: uint8[N], the choices to keep when in doubt; one that its sample does not have is not kept.

        Returns:
            uint8[N], each < C <= 256.

        Raises:
            PlanError: some sample has no usable choice.
        """
        wire = np.asarray(wire_bytes, dtype=np.float64)
        cost = self.agent * np.asarray(agent_s, dtype=np.float64)
        cost += self.loader * np.asarray(loader_s, dtype=np.float64)
        usable = np.isfinite(wire) & np.isfinite(cost)
        if not usable.any(axis=1).all():
            raise PlanError("wire_bytes must have a finite entry in each row; the file always is a choice")
        cost += self.wire * np.where(usable, wire, 0.0)
        cost[~usable] = np.inf
        best = cost.argmin(axis=1)
        if planned is not None:
            rows = np.arange(len(cost))
            best = np.where(cost[rows, planned] * (1 - KEEP) <= cost[rows, best], planned, best)
        positions: NDArray[np.uint8] = best.astype(np.uint8)
        return positions


@dataclass(frozen=True, eq=False)
class Plan:
    """The choice of every sample.

    Args:
        policy: name of the policy that made it.
        choices: the C choices that `chosen` points into.
        chosen: uint8[N], each < C; made read-only.
        reason: why, in one line a user can read.
        predicted: the epoch under the cost model, or None when the costs are not known.
        prices: what the plan was made at, or None for a policy without prices.

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
    prices: Prices | None = None

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
    def has_prices(self) -> bool:
        """Whether workers can choose anew by its prices, because some of them is not zero."""
        prices = self.prices
        return prices is not None and any((prices.wire, prices.agent, prices.loader))

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.chosen)

    def counts(self) -> dict[Choice, int]:
        """How many samples take each choice; choices that no sample takes are left out."""
        counted = np.bincount(self.chosen, minlength=len(self.choices))
        return {choice: int(n) for choice, n in zip(self.choices, counted, strict=True) if n}


def uniform_plan(policy: str, samples: int, choice: Choice, reason: str) -> Plan:
    """The plan in which all samples take one choice; nothing is predicted.

    Args:
        policy: name of the policy that makes it.
        samples: N >= 0.
        choice: what each takes.
        reason: why, in one line a user can read.
    """
    return Plan(policy, (choice,), np.zeros(samples, dtype=np.uint8), reason)


def spread(samples: int, share: float) -> NDArray[np.bool_]:
    """Mark `round(share * samples)` samples, evenly over the indices and the same ones each time.

    A larger share marks a superset, and any run of consecutive indices holds the share to within a few samples.
    Unlike every k-th sample, the marks have no period that a data set's own order could share.

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
    places = golden_places(samples)
    marks: NDArray[np.bool_] = places < np.partition(places, marked)[marked]
    return marks


def golden_places(samples: int) -> NDArray[np.uint32]:
    """uint32[N]: index i's place on a circle of 2**32, in golden-ratio steps; all distinct for N <= 2**32."""
    places: NDArray[np.uint32] = np.arange(samples, dtype=np.uint32) * GOLDEN
    return places
