"""Agents with the same files that die, stand still and come back as drawn: no sample is lost, doubled, or another.

`FAULT_SEEDS=100` runs so many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.cache import worker_cache
from tests.faults.seeds import CACHE_GB, check
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.archives import location_of
from tests.support.cache_harm import CACHE_HARM, harm_cache
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
        harm: (batch of the run, what becomes of the cache, of how many of its files); None without a cache. Files that
            are not mounted are in an archive then.
    """

    agents: int
    mounted: bool
    loader: dict[str, Any]
    faults: list[tuple[int, str, int]]
    harm: list[tuple[int, str, int]] | None = None


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
    keeps, its_harm = random.Random(f"{seed} keeps"), None
    if keeps.random() < 0.8:
        times = keeps.randint(0, 2)
        its_harm = [(keeps.randrange(batches), keeps.choice(CACHE_HARM), keeps.randint(1, 16)) for _ in range(times)]
    return Drawn(agents, mounted, loader, sorted(faults), its_harm)


@pytest.fixture(scope="module")
def agents(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        above = tmp_path_factory.mktemp("replicas")
        exports: dict[str, Path | str] = {EXPORT: root, "tar": location_of(root, above / "t", "tarfile-gnu")}
        found = []
        for number in range(MOST_AGENTS):
            folder_of_one = above / f"indexes {number}"
            found.append(stack.enter_context(agent_for(exports, "--index-folder", str(folder_of_one))))
        yield [one.ready() for one in found]


def harm(agent: Agent, kind: str) -> None:
    if kind == AGAIN:
        agent.go_on()
        if agent.process.poll() is not None:
            agent.start()
    elif agent.process.poll() is None:
        agent.kill() if kind == "kill" else agent.pause()


def epochs(
    schedule: Drawn, dataset: Any, faults: list[tuple[int, str, int]], agents: list[Agent], cache: Path | None = None
) -> list[list[tuple[str, Any]]]:
    """What the loader delivers, epoch by epoch."""
    generator = torch.Generator().manual_seed(schedule.loader["seed"])
    how = {**schedule.loader, "generator": generator}
    kept_there = cache is not None and schedule.harm is not None
    options = replace(SOON, cache=str(cache), cache_gb=CACHE_GB) if kept_there else SOON
    draw = random.Random(schedule.loader["seed"])
    if agents and kept_there and not schedule.mounted:
        how["agent"] = [one.address("tar") for one in agents]
        loader = OffloadingDataLoader(dataset, options=options, **how)
    elif agents:
        loader = loader_of(dataset, *agents, **how, options=options)
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
                for _, what, amount in [one for one in schedule.harm or () if one[0] == number and cache is not None]:
                    assert cache is not None
                    harm_cache(cache, what, amount, draw)
                number += 1
        if agents and not schedule.mounted:
            assert loader.report().as_dict()["fallbacks"] == 0, "one lives"
    finally:
        loader.close()
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(root: Path, agents: list[Agent], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YOUNG_S", "BEHIND_S"):  # the tree's files are new
        monkeypatch.setattr(worker_cache, name, 0.0)
    schedule = drawn(seed)
    print(schedule)  # shown when it fails
    here = Subset(folder(root), range(FILES))
    expected = epochs(schedule, here, [], [])
    used = agents[: schedule.agents]
    address = used[-1].address(EXPORT if schedule.harm is None else "tar")
    remote = RemoteImageFolder(address, transform=train_transform(), options=SOON)
    dataset: Any = here if schedule.mounted else Subset(remote, range(FILES))
    try:
        check(epochs(schedule, dataset, schedule.faults, used, tmp_path), expected, schedule.loader["in_order"])
    finally:
        for one in agents:
            harm(one, AGAIN)
