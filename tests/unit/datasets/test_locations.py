"""Where a sample's file lies in the export, and where on this host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sophon_loader.client.address import Address
from sophon_loader.datasets.locations import Locations, common_root
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.errors import ConfigError
from sophon_loader.host.shared import SharedArray, SharedStrings

HERE = Address.parse("tcp://fileserver:5555/photos")


def data_of(*sources: Source, rows: int = 2) -> Offloadable:
    """A dataset with some rows of each source, one source behind the other."""
    source_of = np.repeat(np.arange(len(sources), dtype=np.int16), rows)
    row_of = np.tile(np.arange(rows, dtype=np.int32), len(sources))
    return Offloadable(sources, SharedArray(source_of), SharedArray(row_of), ())


def source(root: str | None, address: str | None = None) -> Source:
    keys = SharedStrings(["cat/1.jpg", "dog/ü 2.jpg"])
    return Source(root, keys, lambda row: row, None if address is None else Address.parse(address))


def keys(locations: Locations, count: int) -> list[str]:
    return [locations.key_in_export(index) for index in range(count)]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://h:1/photos", ["cat/1.jpg", "dog/ü 2.jpg"]),
        ("tcp://h:1/photos/train", ["train/cat/1.jpg", "train/dog/ü 2.jpg"]),
        ("tcp://h:1/photos/a/b/", ["a/b/cat/1.jpg", "a/b/dog/ü 2.jpg"]),
    ],
)
def test_one_folder_is_what_the_address_names(address: str, expected: list[str]) -> None:
    locations = Locations(data_of(source("/data/train")), Address.parse(address))
    assert keys(locations, 2) == expected
    assert [locations.path_here(index) for index in range(2)] == ["/data/train/cat/1.jpg", "/data/train/dog/ü 2.jpg"]


@pytest.mark.parametrize("roots", [("/data/train", "/data/more/val"), ("/data/train/", "/data/x/../more/val")])
def test_several_folders_lie_in_the_export_as_they_lie_here(roots: tuple[str, str]) -> None:
    data = data_of(*map(source, roots), rows=1)
    assert common_root(data) == "/data"
    assert keys(Locations(data, HERE), 2) == ["train/cat/1.jpg", "more/val/cat/1.jpg"]
    inside = Locations(data, Address.parse("tcp://h:1/photos/2024"))
    assert keys(inside, 2) == ["2024/train/cat/1.jpg", "2024/more/val/cat/1.jpg"]
    assert inside.path_here(1) == f"{roots[1]}/cat/1.jpg"


def test_a_folder_and_one_inside_of_it() -> None:
    data = data_of(source("/data"), source("/data/val"), rows=1)
    assert keys(Locations(data, HERE), 2) == ["cat/1.jpg", "val/cat/1.jpg"]


def test_without_an_agent_keys_are_those_of_the_folders() -> None:
    locations = Locations(data_of(source("/a"), source("/b"), rows=1), None)
    assert keys(locations, 2) == ["cat/1.jpg"] * 2
    assert locations.path_here(1) == "/b/cat/1.jpg"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://h:1/photos", "train/cat/1.jpg"),
        ("tcp://h:1/photos/train", "train/cat/1.jpg"),
    ],
)
def test_a_remote_folder_is_only_in_the_export(address: str, expected: str) -> None:
    locations = Locations(data_of(source(None, "tcp://h:1/photos/train")), Address.parse(address))
    assert locations.key_in_export(0) == expected
    assert locations.path_here(0) is None and locations.root_here(0) is None and not locations.all_here


@pytest.mark.parametrize("address", ["tcp://h:1/other", "tcp://h:1/photos/val", "tcp://h:1/photos/train/cat"])
def test_an_address_that_does_not_hold_a_remote_folder(address: str) -> None:
    with pytest.raises(ConfigError, match="agent must be an address whose folder holds tcp://h:1/photos/train"):
        Locations(data_of(source(None, "tcp://h:1/photos/train")), Address.parse(address))


def test_whether_all_folders_are_here(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    data = data_of(source(str(tmp_path / "a")), source(str(tmp_path / "b")))
    locations = Locations(data, HERE)
    assert not locations.all_here
    (tmp_path / "b").mkdir()
    assert locations.all_here
    (tmp_path / "b").rmdir()
    assert not locations.all_here, "it may come and go"


def test_no_folder_at_all_has_no_common_one() -> None:
    assert common_root(data_of(source(None, "tcp://h:1/photos"))) is None
    assert common_root(data_of()) is None
