"""One address for several datasets: the folder in the export is found, or the error says which there are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, RemoteImageFolder, SampleMissing
from sophon_loader.errors import ConfigError
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, run_epoch
from tests.support.pictures import folder, make_tree


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `photos` with the same names in `train` and `val`, and a folder that is elsewhere."""
    above = tmp_path_factory.mktemp("sets")
    make_tree(above / "photos/train", 12)
    make_tree(above / "photos/val", 6)
    shutil.copytree(above / "photos/val", above / "elsewhere/other")
    return above


@pytest.fixture(scope="module")
def agent(sets: Path) -> Iterator[Agent]:
    with agent_for({"photos": sets / "photos"}) as running:
        yield running


def loader(root: Path, address: str | None) -> OffloadingDataLoader[Any]:
    return OffloadingDataLoader(folder(root), 4, agent=address, policy="all-off", seed=1, options=QUICK)


@pytest.mark.parametrize("name", ["train", "val"])
def test_one_address_serves_train_and_val(sets: Path, agent: Agent, name: str) -> None:
    root = sets / "photos" / name
    there = loader(root, agent.address("photos"))
    assert run_epoch(there) == run_epoch(loader(root, None))
    assert there.report().as_dict()["wire_bytes"] > 0
    there.close()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("photos", "the export has the folders: train, val; it has no"),
        ("photos/trian", "the export has no folder 'trian'; it has: train, val;"),
        ("photos/train/class_9", "the folder 'train' of the export has no folder 'class_9'; it has: class_0,"),
    ],
)
def test_an_address_that_holds_no_such_folder(sets: Path, agent: Agent, address: str, said: str) -> None:
    with pytest.raises(ConfigError, match="the address must name the dataset's folder") as raised:
        iter(loader(sets / "elsewhere/other", agent.address(address)))
    assert said in str(raised.value)


def test_a_remote_folder_that_is_not_there(agent: Agent) -> None:
    with pytest.raises(SampleMissing, match="the export has no folder 'trian'; it has: train, val"):
        RemoteImageFolder(agent.address("photos/trian"), options=QUICK)
