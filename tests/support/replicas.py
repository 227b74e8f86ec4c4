"""What the tests of loaders with several agents share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sophon_loader import OffloadingDataLoader
from tests.support.agents import Agent, until
from tests.support.loaders import QUICK, samples_of

LOADER: dict[str, Any] = {"batch_size": 2, "seed": 3}
SOON = replace(QUICK, connect_timeout_s=0.5, dead_after_s=1.5)
PATIENT = replace(SOON, dead_after_s=20.0)
"""Where no agent dies: on a busy host one may be silent for longer than `SOON` waits."""


def loader_of(dataset: Any, *agents: Agent, **arguments: Any) -> OffloadingDataLoader[Any]:
    """With these agents; by default one that soon gives them up."""
    addresses = [one.address() for one in agents]
    return OffloadingDataLoader(dataset, agent=addresses, **{"options": SOON, **LOADER, **arguments})


def see_shares(loader: Any, expected: Any) -> None:
    """An epoch is the expected one, and each agent has a share of it or, where its connection came late on a busy host
    and the others have all of the files, of an epoch soon after; the loader is closed."""
    try:
        assert samples_of(loader) == expected
        report, each = loader.report().as_dict(), sent(loader)
        found = report["samples"], report["fallbacks"], sum(each)
        assert found == (len(expected), 0, len(expected)), f"{found}\n{loader.report()}"
        for number, count in enumerate(each):
            if not count:
                until_asked(loader, number)
    finally:
        loader.close()


def until_asked(loader: Any, number: int) -> None:
    """Run epochs until the agent of this number has sent a sample in one."""

    def asked() -> bool:
        samples_of(loader)
        return sent(loader)[number] > 0

    until(asked, "it is used")


def sent(loader: Any) -> list[int]:
    """Samples from each agent, as the report has them."""
    return [one["samples"] for one in loader.report().as_dict()["agents"]]
