"""Datasets of classes of their own with several agents: batches are those of torch's DataLoader."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from sophon_loader.recording.opener import can_defer
from sophon_loader.workers.alike import difference
from tests.e2e.test_recorded_agent import FILES, LOADER, Pictures, Views, epochs, root, seeded
from tests.support.agents import EXPORT, Agent, agent_for, until
from tests.support.pictures import picture
from tests.support.replicas import PATIENT, SOON, sent
from tests.support.rostered import MakeAgent

__all__ = ["root"]
pytestmark = [
    pytest.mark.skipif(not can_defer(), reason="our C is not here"),
    pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning"),
]


def loader_of(dataset: Any, agent: Any, workers: int = 0, **options: Any) -> OffloadingDataLoader[Any]:
    return OffloadingDataLoader(dataset, agent=agent, num_workers=workers, **{"options": SOON, **LOADER, **options})


@pytest.fixture
def replicas(root: Path, tmp_path: Path) -> Iterator[list[Agent]]:
    """Two, whose exports begin at unlike folders."""
    with ExitStack() as stack:
        exports = [{EXPORT: root}, {EXPORT: root.parent}]
        yield [stack.enter_context(agent_for(one)).ready() for one in exports]


@pytest.mark.parametrize("workers", [0, 2])
def test_of_replicas_one_may_die(root: Path, replicas: list[Agent], workers: int) -> None:
    dataset = ConcatDataset([Views(root)] * 6)
    expected = epochs(DataLoader(dataset, num_workers=workers, **LOADER), 1)
    loader = loader_of(dataset, [one.address() for one in replicas], workers)
    seeded()
    found = []
    for number, batch in enumerate(loader):
        found.append(batch)
        if number == 8:
            before = sent(loader)
            replicas[0].kill()
    assert difference([found], expected) is None
    assert min(before) > 0 and sent(loader)[1] > before[1]
    assert loader.report().as_dict()["fallbacks"] == 0
    loader.close()


class Paths(torch.utils.data.Dataset[Any]):
    """A corner of each of some pictures."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return np.asarray(Image.open(self.files[index]).crop((0, 0, 8, 8))).copy()


def test_replicas_may_have_the_files_in_folders_of_other_names(tmp_path: Path) -> None:
    files = [tmp_path / f"here/{folder}/{name}.jpg" for folder in "abc" for name in range(4)]
    for number, path in enumerate(files):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(40, 30, number).save(path)
    shutil.copytree(tmp_path / "here", tmp_path / "one")
    shutil.copytree(tmp_path / "here", tmp_path / "other/here")
    dataset = Paths(files)
    expected = epochs(DataLoader(dataset), 1)
    with agent_for({EXPORT: tmp_path / "one"}) as one, agent_for({EXPORT: tmp_path / "other"}) as other:
        loader = loader_of(dataset, [one.ready().address(), other.ready().address()], batch_size=1, shuffle=False)
        assert difference(epochs(loader, 1), expected) is None
        assert sum(sent(loader)) == len(files) and min(sent(loader)) > 0
        loader.close()


@pytest.fixture
def halves(root: Path, tmp_path: Path) -> list[Path]:
    """What two shards export: one has the pictures of folder 0, the other one all the rest."""
    for number in range(3):
        shutil.copytree(root / "images" / str(number), tmp_path / f"{min(number, 1)}/images/{number}")
    return [tmp_path / "0", tmp_path / "1"]


@pytest.fixture
def shards(halves: list[Path]) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        yield [stack.enter_context(agent_for({EXPORT: half})).ready() for half in halves]


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_send_what_they_have(root: Path, shards: list[Agent], workers: int) -> None:
    expected = epochs(DataLoader(Pictures(root), num_workers=workers, **LOADER), 1)
    options = replace(PATIENT, roots={str(root): ""})
    loader = loader_of(Pictures(root), [one.address() for one in shards], workers, options=options)
    assert difference(epochs(loader, 1), expected) is None
    report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and sum(sent(loader)) == report["samples"] >= len(Pictures(root))
    assert min(sent(loader)) > 0
    loader.close()


def test_a_shard_without_the_first_files_needs_to_be_placed(root: Path, shards: list[Agent]) -> None:
    loader = loader_of(Pictures(root), [one.address() for one in shards], shuffle=False)
    with pytest.raises(ConfigError, match=r"must have some files .*, or say by OffloadOptions\(roots=...\)"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_joins_a_roster(root: Path, roster: Path, announced: MakeAgent, workers: int) -> None:
    one = announced()
    dataset = ConcatDataset([Pictures(root)] * 200)
    loader = loader_of(dataset, f"file://{roster}/{EXPORT}", workers, options=PATIENT)
    seeded()
    batches = iter(loader)
    found: list[Any] = []

    def sends(agent: Agent) -> bool:
        found.append(next(batches))
        return any(two["samples"] for two in loader.report().as_dict()["agents"] if agent.endpoint in two["agent"])

    until(lambda: sends(one), "the first is used")
    other = announced()
    until(lambda: sends(other), "the other one is used")
    assert loader.report().as_dict()["fallbacks"] == 0
    loader.close()
    seeded()
    plain = DataLoader(ConcatDataset([Pictures(root)] * 200), num_workers=workers, **LOADER)
    assert difference(found, list(islice(plain, len(found)))) is None


def test_a_shard_that_joins_sends_what_none_had(
    root: Path, roster: Path, announced: MakeAgent, halves: list[Path]
) -> None:
    announced(halves[0])
    options = replace(PATIENT, roots={str(root): ""})
    loader = loader_of(Pictures(root), f"file://{roster}/{EXPORT}", options=options)

    def read_here() -> int:
        before = sum(sent(loader))
        list(loader)
        return int(loader.report().as_dict()["samples"]) - (sum(sent(loader)) - before)

    assert len(list(loader)) == FILES // 4 and read_here() > 0
    announced(halves[1])
    until(lambda: read_here() == 0, "all pictures come from agents")
    loader.close()
