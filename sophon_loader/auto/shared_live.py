"""State that the main process and the workers share if the agent chooses, and the part kept for a later run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from sophon_loader.auto.shared_offers import SharedOffers
from sophon_loader.auto.shared_tariff import SharedTariff


@dataclass(frozen=True)
class Live:
    """State that the main process and the workers share if the agent chooses.

    Args:
        tariff: prices of requests.
        offers: choices that the agent has weighed recently.
    """

    tariff: SharedTariff
    offers: SharedOffers


@dataclass(frozen=True)
class KeptLive:
    """Figures that a plan takes over from an earlier run.

    Args:
        figures: rates, and corrections of estimates, by name.
        arrays: the choices that samples had, as `SharedOffers` keeps them.
    """

    figures: dict[str, float]
    arrays: dict[str, NDArray[Any]]
