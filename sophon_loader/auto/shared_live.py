"""What the main process and the workers share where the agent chooses, and what of it a later run takes over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sophon_loader.auto.shared_offers import SharedOffers
from sophon_loader.auto.shared_tariff import SharedTariff


@dataclass(frozen=True)
class Live:
    """What the main process and the workers share where the agent chooses.

    Args:
        tariff: what requests go out at.
        offers: what the agent has weighed of late.
    """

    tariff: SharedTariff
    offers: SharedOffers


@dataclass(frozen=True)
class KeptLive:
    """What a plan that lives takes over from an earlier run.

    Args:
        figures: rates, and what goes beside ops, by name.
        arrays: the choices that samples had, as `SharedOffers` keeps them.
    """

    figures: dict[str, float]
    arrays: dict[str, NDArray[Any]]
