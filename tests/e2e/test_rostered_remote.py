"""A loader whose agents come and go, and whose files only they have: who is there sends them, and nobody else can."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import AgentUnreachable, ConfigError
from tests.support.agents import EXPORT, Agent
from tests.support.pictures import folder, train_transform
from tests.support.replicas import LOADER, PATIENT, SOON
from tests.support.rostered import SAMPLER, Epoch, MakeAgent

AWAITED = replace(PATIENT, dead_after_s=40.0)
"""Long enough for an agent to be started meanwhile."""


def loader_of(roster: Path, *agents: Agent, **arguments: Any) -> OffloadingDataLoader[Any]:
    given = {"policy": "all-off", "agent": f"file://{roster}/{EXPORT}", "sampler": SAMPLER, **LOADER, **arguments}
    dataset = RemoteImageFolder([one.address() for one in agents], transform=train_transform(), options=PATIENT)
    return OffloadingDataLoader(dataset, **given)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_listed_by_those_that_a_folder_names(
    root: Path, tmp_path: Path, roster: Path, announced: MakeAgent, workers: int
) -> None:
    """Two shards and a third agent that joins; the folder is named once, by the dataset."""
    even, odd = (tmp_path / name / "deep" for name in ("even", "odd"))
    for number, path in enumerate(sorted(root.rglob("*.*"))):
        copy = (even, odd)[number % 2] / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    address = f"file://{roster}/{EXPORT}/deep"
    with pytest.raises(AgentUnreachable, match=f"no agent of '{EXPORT}' is announced in {roster}"):
        RemoteImageFolder(address, options=replace(SOON, agent_missing="raise"))
    agents = [announced(even.parent), announced(odd.parent)]
    short = replace(PATIENT, dead_after_s=4.0)  # for the agent that is gone when the dataset is read in the end
    dataset = RemoteImageFolder(address, transform=train_transform(), options=short)
    plain = folder(root)
    assert dataset.classes == plain.classes and dataset.targets == plain.targets
    assert [path.removeprefix(f"{address}/") for path, _ in dataset.samples] == [
        str(Path(path).relative_to(root)) for path, _ in plain.samples
    ]
    loader = OffloadingDataLoader(
        dataset, policy="all-off", options=AWAITED, num_workers=workers, sampler=SAMPLER, **LOADER
    )
    with closing(loader):
        epoch = Epoch(loader, root)
        epoch.until(lambda: min(map(epoch.sent, agents)) > 10, "both are used")
        other = announced(odd.parent)
        epoch.until(lambda: epoch.sent(other) > 10, "another one joins")
        agents[1].end()
        for _ in range(30):
            epoch.next()
        assert loader.report().as_dict()["fallbacks"] == 0
    assert len({len(dataset[number]) for number in (0, 1)}) == 1, "a file of one that was not there then, too"
    with pytest.raises(ConfigError, match="which plans for one"):
        next(iter(OffloadingDataLoader(dataset, policy="sophon")))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_last_one_goes_and_another_comes_in_time(
    root: Path, roster: Path, announced: MakeAgent, workers: int, how: signal.Signals
) -> None:
    """It is waited for while a batch is, at an address that nobody knows before it is there."""
    one = announced()
    with closing(loader_of(roster, one, num_workers=workers, options=AWAITED)) as loader:
        epoch = Epoch(loader, root)
        epoch.until(lambda: epoch.sent(one) > 10, "it is used")
        one.end(how)
        starting = threading.Timer(0.5, announced)
        starting.start()
        try:
            count, before, began_s = loader.report().as_dict()["samples"], epoch.sent(one), time.monotonic()
            for _ in range(40):
                epoch.next()
            assert time.monotonic() - began_s < AWAITED.dead_after_s, "it is used at once"
        finally:
            starting.join()
        report = loader.report().as_dict()
        assert report["fallbacks"] == 0 and epoch.sent(one) <= before + 40
        assert count + 60 <= report["samples"] <= count + 100, "none is counted twice"


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("listed", [False, True])
def test_all_are_killed_and_one_comes_back_in_time(
    root: Path, roster: Path, announced: MakeAgent, workers: int, listed: bool
) -> None:
    agents = [announced(), announced()]
    among = {"agent": [one.address() for one in agents]} if listed else {}
    with closing(loader_of(roster, *agents, num_workers=workers, options=AWAITED, **among)) as loader:
        epoch = Epoch(loader, root)
        epoch.until(lambda: min(map(epoch.sent, agents)) > 0, "both are used")
        for one in agents:
            one.kill()
        starting = threading.Timer(0.5, agents[0].start)
        starting.start()
        try:
            for _ in range(40):
                epoch.next()
        finally:
            starting.join()
        assert loader.report().as_dict()["fallbacks"] == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_the_last_one_goes_and_nobody_comes(root: Path, roster: Path, announced: MakeAgent, workers: int) -> None:
    one = announced()
    with closing(loader_of(roster, one, num_workers=workers, options=SOON)) as loader:
        batches = iter(loader)
        next(batches)
        one.end()
        began_s = time.monotonic()
        remedy = f"(?s)an agent that file://{roster}/{EXPORT} names must answer, .*; start one and continue"
        with pytest.raises(AgentUnreachable, match=remedy):
            for _ in range(40):
                next(batches)
        assert time.monotonic() - began_s < 15.0
        announced()
        found = 0
        for _ in range(20):  # each batch that was waited for in vain is one of those that fail
            try:
                next(batches)
                found += 1
            except AgentUnreachable:
                assert not found
        assert found
