"""Where the agent has a dataset's files, by a few of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.errors import ConfigError
from sophon_loader.fleet.looked_for import look_for
from sophon_loader.host.shared import SharedArray, SharedStrings
from sophon_loader.wire.messages import NO_FILE, Sizes

KEYS = ["cat/1.jpg", "dog/2.jpg"]
SIZES = {"cat/1.jpg": 11, "dog/2.jpg": 22}


class Export:
    """An agent's export: sizes of files by their keys."""

    def __init__(self, *folders: str, sizes: dict[str, int] = SIZES) -> None:
        self._nbytes = {f"{folder}{key}": nbytes for folder in folders for key, nbytes in sizes.items()}

    def sizes(self, keys: list[str], timeout_s: float) -> Sizes:
        return Sizes("/there", [self._nbytes.get(key, NO_FILE) for key in keys])


@pytest.fixture
def data(tmp_path: Path) -> Offloadable:
    """A dataset in .../data/imagenet/train."""
    root = tmp_path / "data/imagenet/train"
    for key, nbytes in SIZES.items():
        (root / key).parent.mkdir(parents=True)
        (root / key).write_bytes(bytes(nbytes))
    return dataset(str(root))


def dataset(root: str | None, address: Address | None = None) -> Offloadable:
    rows = np.arange(len(KEYS), dtype=np.int32)
    source = Source(root, SharedStrings(KEYS), lambda row: row, address)
    return Offloadable((source,), SharedArray(np.zeros(len(KEYS), np.int16)), SharedArray(rows), ())


def found(data: Offloadable, export: Any, address: str = "tcp://h:1/e") -> str:
    """What the agent calls the first file."""
    locations, _ = look_for(export, data, Address.parse(address), OffloadOptions())
    return locations.key_in_export(0)


@pytest.mark.parametrize(
    ("folders", "address", "key"),
    [
        (["train/"], "tcp://h:1/e", "train/cat/1.jpg"),
        (["imagenet/train/"], "tcp://h:1/e", "imagenet/train/cat/1.jpg"),
        (["sets/data/imagenet/train/"], "tcp://h:1/e/sets", "sets/data/imagenet/train/cat/1.jpg"),
        (["", "train/"], "tcp://h:1/e", "cat/1.jpg"),  # what the address names goes before what it holds
        (["val/"], "tcp://h:1/e", "cat/1.jpg"),  # nothing is guessed; the comparison of files says so
    ],
)
def test_the_folder_is_found_by_the_last_names_of_the_datasets(
    data: Offloadable, folders: list[str], address: str, key: str
) -> None:
    assert found(data, Export(*folders), address) == key


@pytest.mark.parametrize("sizes", [{**SIZES, "dog/2.jpg": 23}, {"cat/1.jpg": 11}], ids=["another size", "one missing"])
def test_a_folder_with_other_files_is_not_taken(data: Offloadable, sizes: dict[str, int]) -> None:
    assert found(data, Export("train/", sizes=sizes)) == "cat/1.jpg"


def test_of_two_folders_that_fit_none_is_taken(data: Offloadable) -> None:
    with pytest.raises(ConfigError, match="several folders have its files: train, imagenet/train; add one"):
        found(data, Export("train/", "imagenet/train/"))


def test_files_that_are_not_here_must_all_be_there() -> None:
    data = dataset("/not/mounted/train")
    assert found(data, Export("train/")) == "train/cat/1.jpg"
    assert found(data, Export("train/", sizes={"cat/1.jpg": 11})) == "cat/1.jpg"


def test_a_remote_folder_names_its_own() -> None:
    address = Address.parse("tcp://h:1/e/val")
    assert found(dataset(None, address), Export("train/"), str(address)) == "val/cat/1.jpg"
