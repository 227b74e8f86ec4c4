"""Agents with the same files that die, stand still and come back as drawn: no sample is lost, doubled, or another.

`FAULT_SEEDS=100` runs so many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from tests.faults.seeds import check
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import samples_of
from tests.support.pictures import folder, train_transform
from tests.support.replicas import SOON, loader_of

FILES = 48
SEEDS = int(os.environ.get("FAULT_SEEDS", "6"))
EPOCHS = 2
MOST_AGENTS, MOST_FAULTS, MOST_BATCHES = 3, 4, 8
AGAIN = "again"
"""One that was killed is started, one that was stopped goes on."""

pytestmark = [
    pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning"),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Drawn:
    """A loader and what becomes of its agents.

    Args:
        agents: how many it has.
        mounted: whether the files can be read without them; else one agent lives throughout.
        loader: arguments.
        faults: (batch of the run, what is done, number of the agent), in order.
    """

    agents: int
    mounted: bool
    loader: dict[str, Any]
    faults: list[tuple[int, str, int]]


def drawn(seed: int) -> Drawn:
    draw = random.Random(seed)
    agents, mounted = draw.randint(2, MOST_AGENTS), draw.random() < 0.5
    workers, batch_size = draw.randint(0, 2), draw.randint(2, 6)
    loader: dict[str, Any] = {
        "seed": seed,
        "batch_size": batch_size,
        "num_workers": workers,
        "policy": draw.choice(("no-off", "all-off", "resize-off", "auto")),
        "shuffle": draw.random() < 0.5,
        "persistent_workers": workers > 0 and draw.random() < 0.5,
        "in_order": workers == 0 or draw.random() < 0.8,
    }
    batches = EPOCHS * -(-FILES // batch_size)
    harmed = agents if mounted else agents - 1
    faults: list[tuple[int, str, int]] = []
    for _ in range(draw.randint(1, MOST_FAULTS)):
        at, one = draw.randrange(batches), draw.randrange(harmed)
        faults += [(at, draw.choice(("kill", "stop")), one), (at + draw.randint(1, MOST_BATCHES), AGAIN, one)]
    return Drawn(agents, mounted, loader, sorted(faults))


@pytest.fixture(scope="module")
def agents(root: Path) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        found = [stack.enter_context(agent_for({EXPORT: root})) for _ in range(MOST_AGENTS)]
        yield [one.ready() for one in found]


def harm(agent: Agent, kind: str) -> None:
    if kind == AGAIN:
        agent.go_on()
        if agent.process.poll() is not None:
            agent.start()
    elif agent.process.poll() is None:
        agent.kill() if kind == "kill" else agent.pause()


def epochs(
    schedule: Drawn, dataset: Any, faults: list[tuple[int, str, int]], agents: list[Agent]
) -> list[list[tuple[str, Any]]]:
    """What the loader delivers, epoch by epoch."""
    generator = torch.Generator().manual_seed(schedule.loader["seed"])
    how = {**schedule.loader, "generator": generator}
    if agents:
        loader = loader_of(dataset, *agents, **how)
    else:
        loader = OffloadingDataLoader(dataset, **{**how, "policy": "no-off"})
    found: list[list[tuple[str, Any]]] = []
    number = 0
    try:
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            found.append([])
            for batch in loader:
                found[-1] += samples_of([batch])
                for _, kind, one in [fault for fault in faults if fault[0] == number]:
                    harm(agents[one], kind)
                number += 1
        if agents and not schedule.mounted:
            assert loader.report().as_dict()["fallbacks"] == 0, "one lives"
    finally:
        loader.close()
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(root: Path, agents: list[Agent], seed: int) -> None:
    schedule = drawn(seed)
    print(schedule)  # shown when it fails
    here = Subset(folder(root), range(FILES))
    expected = epochs(schedule, here, [], [])
    used = agents[: schedule.agents]
    remote = RemoteImageFolder(used[-1].address(), transform=train_transform(), options=SOON)
    dataset: Any = here if schedule.mounted else Subset(remote, range(FILES))
    try:
        check(epochs(schedule, dataset, schedule.faults, used), expected, schedule.loader["in_order"])
    finally:
        for one in agents:
            harm(one, AGAIN)
