"""The tariff that requests carry if the agent chooses: prices, a mix of several, or plain files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sophon_loader.decide.cost import EpochTime
from sophon_loader.errors import PlanError


@dataclass(frozen=True)
class Prices:
    """The worth of one unit of each resource, >= 0; only their proportions matter.

    Args:
        wire: of a byte.
        loader: of a CPU second in the loader.
        agent: of a CPU second at the agent.
        per_worker: cores of each of the agent's workers that the prices were computed for, 0 if not known. A worker
            that now has far fewer does not choose by them. Not a price.
        kept_here: True if a sample whose file is in the loader's cache is made from that file. At these prices that
            costs less on average than the agent's result.
        fill: share to request as whole files, in [0, 1], of the samples that the cache is to hold and does not yet.

    Raises:
        PlanError: a price is negative, infinite or NaN.

    Example:
        >>> Prices(wire=1 / 12.5e6, loader=0.5, agent=0.25)
    """

    wire: float
    loader: float
    agent: float
    per_worker: float = 0.0
    kept_here: bool = True
    fill: float = 0.0

    def __post_init__(self) -> None:
        for name in ("wire", "loader", "agent", "per_worker"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise PlanError(f"{name} must be >= 0 and finite, got {value}; plan again from fresh rates")


@dataclass(frozen=True)
class Part:
    """A share of the requests, with its prices.

    Args:
        share: of all requests, in (0, 1].
        prices: prices by which the agent chooses; None for plain files.
    """

    share: float
    prices: Prices | None


@dataclass(frozen=True)
class Tariff:
    """The tariff that requests carry.

    A linear programme over few kinds of samples has its optimum in a mix: at one set of prices all similar samples
    would take the same choice. So requests are divided among the parts, by their shares.

    Args:
        parts: at least one; their shares sum to 1.
        reason: why, in one line a user can read.
        predicted: the time of the samples that this was made from, under the cost model; None before any is known.
        without: the time without offloading.

    Raises:
        PlanError: there is no part, or the shares do not sum to 1.

    Example:
        >>> Tariff((Part(0.25, None), Part(0.75, Prices(wire=1.0, loader=2.0, agent=2.0))), "because").offloads
        True
    """

    parts: tuple[Part, ...]
    reason: str
    predicted: EpochTime | None = None
    without: EpochTime | None = None

    def __post_init__(self) -> None:
        total = sum(part.share for part in self.parts)
        if not math.isclose(total, 1.0, rel_tol=1e-6) or any(not part.share > 0 for part in self.parts):
            raise PlanError(f"shares must be above 0 and make 1, got {[part.share for part in self.parts]}")

    @property
    def offloads(self) -> bool:
        """True if the agent is asked for more than files."""
        return any(part.prices is not None for part in self.parts)

    def to_plain(self) -> list[Any]:
        """Return the parts as plain data."""
        return [[part.share, part.prices and list(astuple(part.prices))] for part in self.parts]

    @staticmethod
    def from_plain(rows: Sequence[Any]) -> Tariff:
        """Make a tariff from the result of `to_plain`, without its reason and times."""
        parts = [Part(share, prices and Prices(*prices)) for share, prices in rows]
        return Tariff(tuple(parts), "")


@dataclass(frozen=True)
class Traffic:
    """The allowed cost of saving traffic.

    Args:
        weight: share of the agent's cores that may be used to save traffic if that costs no time; 0 for none.
        cost_per_gb: seconds of training that a gigabyte less on the wire is worth; 0 if traffic is free.
    """

    weight: float = 0.5
    cost_per_gb: float = 0.0


FILES = Part(1.0, None)
"""The part of a tariff without offloading."""
NO_TRAFFIC = Traffic(weight=0.0)
"""Saving traffic may cost nothing."""
