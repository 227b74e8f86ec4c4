"""What the tests of loaders with several agents share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sophon_loader import OffloadingDataLoader
from tests.support.agents import Agent
from tests.support.loaders import QUICK

LOADER: dict[str, Any] = {"batch_size": 2, "seed": 3}
SOON = replace(QUICK, connect_timeout_s=0.5, dead_after_s=1.5)


def loader_of(dataset: Any, *agents: Agent, **arguments: Any) -> OffloadingDataLoader[Any]:
    """With these agents; by default one that soon gives them up."""
    addresses = [one.address() for one in agents]
    return OffloadingDataLoader(dataset, agent=addresses, **{"options": SOON, **LOADER, **arguments})


def sent(loader: Any) -> list[int]:
    """Samples from each agent, as the report has them."""
    notes = [note for note in loader.report().as_dict()["notes"] if " has sent " in note]
    return [int(note.split(" has sent ")[1].split(" ")[0].replace(",", "")) for note in notes]
