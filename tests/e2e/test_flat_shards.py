"""Loaders over samples of several files, in tar and zip files and in folders: `000017.jpg` beside `000017.cls`."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sophon_loader import FileDataset, OffloadingDataLoader, RemoteFiles
from sophon_loader.errors import (
    ConfigError,
    OffloadWarning,
    SampleMissing,
    SampleUnreadable,
)
from tests.support.agents import Agent, agent_for
from tests.support.flat import members_of, pictures_in, write_flat
from tests.support.loaders import QUICK, said, samples_of
from tests.support.pictures import train_transform

EXPORTS = ["tars", "zips", "folders"]
NUMBERS = [[*range(12)], [*range(6, 20)]]
"""Of the samples in each shard: some names are in both, with another picture."""
ALL = [(f"part-{shard}/{number:06}", number) for shard, numbers in enumerate(NUMBERS) for number in numbers]


@pytest.fixture(scope="module")
def above(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("flat")


@pytest.fixture(scope="module")
def agent(above: Path) -> Iterator[Agent]:
    pictures = iter(pictures_in(above / "pictures", 40))
    shards = [[members_of(number, next(pictures)) for number in numbers] for numbers in NUMBERS]
    exports = write_flat(above / "good", shards)
    broken = [members_of(number, next(pictures)) for number in range(3)]
    broken[1]["000001.cls"] = b"seven"
    del broken[2]["000002.cls"]
    broken[2]["000002.txt"] = b"\xff"
    broken[2]["000002.meta.json"] = b"{"
    del broken[0]["000000.jpg"]
    exports["broken"] = write_flat(above / "bad", [broken])["tars"]
    named = [{f"{number}.input.jpg": next(pictures), f"{number}.output.cls": b"%d" % number} for number in range(3)]
    exports["named"] = write_flat(above / "named", [named])["tars"]
    pairs = [{f"{number}.input.jpg": b"", f"{number}.mask.png": b"", f"{number}.cls": b"1"} for number in range(3)]
    exports["pairs"] = write_flat(above / "pairs", [pairs])["folders"]
    with agent_for(exports, "--index-folder", str(above / "indexes")) as running:
        yield running


def _epochs(dataset: Any, address: str | None, policy: str, workers: int) -> list[Any]:
    order = torch.Generator().manual_seed(5)
    loader = OffloadingDataLoader(
        dataset,
        7,
        agent=address,
        policy=policy,
        seed=3,
        shuffle=True,
        generator=order,
        num_workers=workers,
        options=QUICK,
    )
    try:
        found = samples_of(loader) + samples_of(loader)
        assert address is None or loader.report().offloading or policy == "no-off", loader.report()
        return found
    finally:
        loader.close()


@pytest.fixture(scope="module")
def reference(above: Path, agent: Agent) -> list[Any]:
    """The samples of two epochs of mounted files, without an agent."""
    root = str(above / "good" / "folders")
    mounted = FileDataset(root, [f"{key}.jpg" for key, _ in ALL], [number % 7 for _, number in ALL], train_transform())
    return _epochs(mounted, None, "no-off", 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
@pytest.mark.parametrize("export", EXPORTS)
def test_same_samples_as_of_mounted_files(
    agent: Agent, reference: list[Any], export: str, policy: str, workers: int
) -> None:
    dataset = RemoteFiles(agent.address(export), train_transform(), options=QUICK)
    assert _epochs(dataset, agent.address(export), policy, workers) == reference


@pytest.mark.parametrize("export", EXPORTS)
def test_samples_are_in_order_and_none_is_lost(agent: Agent, export: str) -> None:
    dataset = RemoteFiles(agent.address(export), options=QUICK)
    assert dataset.keys == [f"{key}.jpg" for key, _ in ALL]
    assert dataset.targets == [number % 7 for _, number in ALL]
    below = RemoteFiles(agent.address(f"{export}/part-1"), options=QUICK)
    assert below.keys == [f"{number:06}.jpg" for number in NUMBERS[1]]
    assert below[3][0].tobytes() == dataset[15][0].tobytes() == pickle.loads(pickle.dumps(below))[3][0].tobytes()


def test_one_archive_keeps_its_names(agent: Agent) -> None:
    assert RemoteFiles(agent.address("tar"), options=QUICK).keys[0] == "000000.jpg"


def _numbers(members: dict[str, bytes]) -> tuple[bytes, list[str]]:
    return members["bin"], sorted(members)


@pytest.mark.parametrize("export", EXPORTS)
def test_targets(agent: Agent, export: str) -> None:
    def targets_of(target: Any) -> list[Any]:
        return RemoteFiles(agent.address(export), target=target, options=QUICK).targets

    assert targets_of("txt") == [f"sample {number} é" for _, number in ALL]
    assert targets_of("meta.json") == [{"number": number} for _, number in ALL]
    every = ["bin", "cls", "meta.json", "txt"]
    assert targets_of(_numbers) == [(bytes([0, 255, number]), every) for _, number in ALL]


@pytest.mark.parametrize(
    "target, error, text",
    [
        ("cls", SampleUnreadable, r"'cls' must be an integer, got b'seven' beside '000001.jpg'"),
        ("txt", SampleUnreadable, r"'txt' must be text in UTF-8, got b'\\xff' beside '000002.jpg'"),
        ("meta.json", SampleUnreadable, r"'meta.json' must be JSON, got b'{' beside '000002.jpg'"),
        ("json", SampleMissing, r"must have the member 'json', got \['bin', 'cls', 'meta.json', 'txt'\] beside"),
        ("npy", ConfigError, "target must be a member that ends in cls, txt, json, or a function"),
        (lambda members: members["cls"], KeyError, r"in target\(\) of the sample with '000002.jpg', which has the"),
    ],
)
@pytest.mark.filterwarnings("ignore::sophon_loader.OffloadWarning")
def test_what_is_broken_is_named(agent: Agent, target: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as found:
        RemoteFiles(agent.address("broken"), target=target, options=QUICK)
    assert re.search(text, said(found.value))


def test_a_group_without_a_picture_is_no_sample_and_told_of(agent: Agent) -> None:
    with pytest.warns(OffloadWarning, match="1 groups of files in .* have no picture .* the first with '000000.bin'"):
        found = RemoteFiles(agent.address("broken"), target=_numbers, options=QUICK)
    assert found.keys == ["000001.jpg", "000002.jpg"]


def test_the_picture_that_an_argument_names(agent: Agent) -> None:
    address = agent.address("named")
    dataset = RemoteFiles(address, train_transform(), target="output.cls", image="input.jpg", options=QUICK)
    assert dataset.keys == [f"{number}.input.jpg" for number in range(3)] and dataset.targets == [0, 1, 2]
    assert _epochs(dataset, address, "all-off", 0) == _epochs(dataset, address, "no-off", 0)


def test_the_only_picture_of_each_sample_needs_no_name(agent: Agent) -> None:
    found = RemoteFiles(agent.address("named"), target="output.cls", options=QUICK)
    assert found.keys == [f"{number}.input.jpg" for number in range(3)] and found.targets == [0, 1, 2]
    with pytest.raises(FileNotFoundError, match=r"6 pictures in .* the first '\S*0.input.jpg': .*image='input.jpg'"):
        RemoteFiles(agent.address("pairs"), options=QUICK)


def test_a_loader_that_is_to_start_an_agent_where_there_are_no_files(agent: Agent) -> None:
    loader = OffloadingDataLoader(RemoteFiles(agent.address("tars"), options=QUICK), agent="local")
    with pytest.raises(ConfigError, match="must have a dataset on this host, got a RemoteFiles; give the agent's"):
        next(iter(loader))


def test_a_folder_that_is_not_there(agent: Agent) -> None:
    with pytest.raises(SampleMissing, match="agent must name a folder that the export has"):
        RemoteFiles(agent.address("tars/part-9"), options=QUICK)
