"""The log of whole runs over a real agent: what it says adds up, and a training does not notice it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from torchvision import transforms

from examples.pictures import make_pictures
from sophon_loader import OffloadingDataLoader, OffloadWarning
from sophon_loader.report import run_log
from sophon_loader.report.command import main
from sophon_loader.report.course import read_course
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import QUICK, digest_of
from tests.support.pictures import folder

COUNT = 48


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("all") / "pictures"
    make_pictures(root, COUNT, classes=4)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Agent]:
    with agent_for({EXPORT: root}) as running:
        yield running


@pytest.fixture(autouse=True)
def first_loaders() -> None:
    run_log._loaders.clear()


def loader_of(root: Path, server: Agent, log: Path | None, **more: Any) -> OffloadingDataLoader[Any]:
    chain = transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()])
    options = replace(QUICK, log=log)
    given: dict[str, Any] = {"num_workers": 1, "seed": 5, "policy": "all-off", **more}
    return OffloadingDataLoader(folder(root, chain), 4, agent=server.address(EXPORT), options=options, **given)


def trained(loader: Any, step_s: float = 0.0, epochs: int = 1, most: int = COUNT) -> list[str]:
    digests = []
    for _ in range(epochs):
        for number, (images, _) in enumerate(loader):
            digests.append(digest_of(images))
            time.sleep(step_s)
            if number + 1 == most:
                break
    return digests


def test_seconds_add_up_to_what_the_reports_say(root: Path, server: Agent, tmp_path: Path) -> None:
    log = tmp_path / "run-{rank}.jsonl"
    with closing(loader_of(root, server, log)) as loader:
        with_log = trained(loader, step_s=0.2, epochs=2)
        report = loader.report()
    course = read_course(tmp_path / "run-0.jsonl")
    assert [one.number for one in course.epochs] == [0, 1] and not course.unreadable
    for epoch in course.epochs:
        assert epoch.ended and len(epoch.seconds) >= 2 and epoch.told is not None
        values = epoch.told.values
        assert epoch.total("samples") == values["samples"] == COUNT
        assert epoch.total("wire_bytes") == values["wire_bytes"] > 0
        assert epoch.total("for_s") == pytest.approx(values["seconds"], abs=0.1)
        assert epoch.total("waited_s") == pytest.approx(values["awaited_s"], abs=0.1)
        assert sum(sum(one["choices"].values()) for one in epoch.seconds) == COUNT
        assert values["agent_address"] == server.address(EXPORT)
    assert course.epochs[1].told == replace(report.told(), rows=course.epochs[1].told.rows, values=_plain(report))
    assert main([str(tmp_path / "run-0.jsonl")]) == 0
    with closing(loader_of(root, server, None)) as loader:
        assert trained(loader, epochs=2) == with_log
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-0.html", "run-0.jsonl"]


def _plain(report: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(report.as_dict()))
    return told


def test_train_and_validation_and_an_epoch_that_is_given_up(root: Path, server: Agent, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with closing(loader_of(root, server, log)) as train, closing(loader_of(root, server, log)) as val:
        trained(train, step_s=0.3, most=6)
        trained(val)
        trained(train, step_s=0.3, most=6)
    of_train = read_course(log)
    assert [one.ended for one in of_train.epochs] == [False, False]
    assert all(one.told is not None and one.seconds for one in of_train.epochs)
    assert [one.ended for one in read_course(tmp_path / "run-loader1.jsonl").epochs] == [True]


def test_a_folder_that_goes_away_ends_the_log_and_not_the_training(root: Path, server: Agent, tmp_path: Path) -> None:
    with closing(loader_of(root, server, tmp_path / "logs" / "run.jsonl")) as loader:
        batches = iter(loader)
        next(batches)
        shutil.rmtree(tmp_path / "logs")
        time.sleep(1.0)
        with pytest.warns(OffloadWarning, match="run.jsonl stops here, and the training goes on") as told:
            assert len(list(batches)) == COUNT // 4 - 1
        assert len(told) == 1
        assert trained(loader)
    assert not (tmp_path / "logs").exists()


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


@pytest.mark.parametrize("dataset", [Numbers(), Stream()])
def test_what_loads_plainly_says_so_in_its_log(dataset: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    loader: OffloadingDataLoader[Any] = OffloadingDataLoader(dataset, 4, options=replace(QUICK, log=log))
    assert [len(list(loader)) for _ in range(2)] == [2, 2]
    told = read_course(log).told
    assert any("runs as a plain DataLoader" in value for _, value in told.rows)
    assert len(log.read_text().splitlines()) == 1 and main([str(log)]) == 0
    loader.close()
