"""The look at three samples before the first epoch: what it finds, and that the user's objects do not notice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.run import comparison
from sophon_loader.run.comparison import unlike_its_parts
from tests.support.pictures import folder

of_all = 0


class Counts:
    """Gives how often it has been called, in this object and in this module."""

    def __init__(self) -> None:
        self.calls = -1

    def __call__(self, image: Any) -> Any:
        global of_all
        of_all += 1
        self.calls += 1
        return torch.tensor([self.calls, of_all])


class Mine(Dataset[Any]):
    """Keeps to the protocol, and has an open file, which no copy could be made of."""

    def __init__(self, root: Path, transform: Any, labels: Any = None) -> None:
        self.root, self.transform = str(root), transform
        self.labels = labels

    def __len__(self) -> int:
        return 4

    def key(self, index: int) -> str:
        return f"{index}.png"

    def target(self, index: int) -> Any:
        return index if self.labels is None else self.labels.readline()

    def __getitem__(self, index: int) -> Any:
        with Image.open(f"{self.root}/{self.key(index)}") as image:
            return self.transform(image.convert("RGB")), self.target(index)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    for n in range(4):
        Image.new("RGB", (8, 8), (n, 0, 0)).save(root / f"{n}.png")
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_epoch_begins_with_the_user_s_objects_as_they_are(root: Path, workers: int) -> None:
    global of_all
    found = []
    for kind in (DataLoader, OffloadingDataLoader):
        of_all = 0
        loader = kind(Mine(root, Counts()), batch_size=2, num_workers=workers)
        found.append(torch.cat([images for images, _ in loader]).tolist())
    assert found[0] == found[1] == [[n, n + 1] for n in range(4)]


def test_a_file_that_a_dataset_reads_from_stands_where_it_stood(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_text("".join(f"{n}\n" for n in range(100)))
    with path.open() as labels:
        assert labels.readline() == "0\n"
        loader: Any = OffloadingDataLoader(Mine(root, v1.ToTensor(), labels), num_workers=0)
        assert [label[0] for _, label in loader] == ["1\n", "2\n", "3\n", "4\n"]
        assert "plain DataLoader" not in str(loader.report().notes)


class Crashes(Mine):
    """Ends whatever process reads it: a library that does not bear being forked, say."""

    def __getitem__(self, index: int) -> Any:
        os._exit(5)


def test_one_that_cannot_be_compared_runs_plainly(root: Path) -> None:
    loader: Any = OffloadingDataLoader(Mine(root, v1.ToTensor()), num_workers=0)
    loader.dataset.__class__ = Crashes
    iterator = iter(loader)
    assert loader.report().notes == (
        "runs as a plain DataLoader: the dataset could not be compared with its parts, because "
        "the process that compares ended with status 5",
    )
    del iterator


class Fails(Mine):
    """Has a label that cannot be had, wherever it is asked for."""

    def target(self, index: int) -> Any:
        raise LookupError(index)


def test_what_fails_in_both_ways_is_left_to_the_epoch(root: Path) -> None:
    assert unlike_its_parts(offloadable(Fails(root, v1.ToTensor()))) is None


def test_no_process_is_started_where_nothing_is_to_be_compared(
    image_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "tried_apart", lambda look: pytest.fail("not needed"))
    assert unlike_its_parts(offloadable(folder(image_tree))) is None
