"""Indexes in a folder that agents of several hosts share: none is taken away from those who have it open."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from storage_agent.stores.archives.index import OBJECT, OTHER, Index, IndexEntry, open_whole, write_index
from storage_agent.stores.buckets.listings import Listings
from tests.unit.agent.stores.archives.made_archives import Opened, refused, tar_of


def _age(*paths: Path) -> None:
    """Let files be as old as those that starts remove."""
    for path in paths:
        os.utime(path, (0, 0))


def test_unlike_archives_at_one_path_have_an_index_each(tmp_path: Path, opened: Opened) -> None:
    """As of several hosts whose agents share the folder of indexes; what no agent has open is removed a day later."""
    first = opened(tar_of(tmp_path / "x.tar", ("x.jpg", b"1")))
    assert first.found is not None
    used = Path(first.found.index)
    _age(used)
    for number in range(2, 4):
        opened(tar_of(tmp_path / "x.tar", ("x.jpg", b"1" * number)))
    assert used.exists() and len([*used.parent.iterdir()]) == 3, "one is open, one is new"
    _age(*used.parent.iterdir())
    del first
    opened(tar_of(tmp_path / "x.tar", ("x.jpg", b"1111")))
    assert len([*used.parent.iterdir()]) == 1


def test_archives_of_one_size_and_time_have_an_index_each(tmp_path: Path, opened: Opened) -> None:
    """As in images of containers, whose files all have one time."""
    for members in ((("a.jpg", b"1"), ("b.jpg", b"2")), (("b.jpg", b"1"), ("a.jpg", b"2"))):
        os.utime(tar_of(tmp_path / "x.tar", *members), (1, 1))
        store = opened(tmp_path / "x.tar")
        assert [(name, store.read(name)) for name, _ in members] == [*members]


def test_an_archive_that_may_not_be_read(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("storage_agent.stores.archives.indexing.open_regular", denied)
    refused(opened, tar_of(tmp_path / "x.tar", ("x.jpg", b"1")), "x.tar: Permission denied; give the agent's user")


def test_an_index_that_is_made_twice_is_kept_for_those_who_have_it_open(tmp_path: Path) -> None:
    write_index(tmp_path / "i", [], [IndexEntry(b"a", OTHER)])
    first = os.stat(tmp_path / "i")
    write_index(tmp_path / "i", [], [IndexEntry(b"a", OTHER)])
    assert os.path.samestat(os.stat(tmp_path / "i"), first) and len([*tmp_path.iterdir()]) == 1
    (tmp_path / "i").write_bytes(b"damaged")
    write_index(tmp_path / "i", [], [IndexEntry(b"a", OTHER)])
    assert len(Index(tmp_path / "i")) == 1 and len([*tmp_path.iterdir()]) == 1


def test_an_index_that_is_being_removed_is_not_taken(tmp_path: Path) -> None:
    write_index(tmp_path / "i", [], [])
    with (tmp_path / "i").open("r+b") as remover:
        fcntl.flock(remover, fcntl.LOCK_EX)
        assert open_whole(tmp_path / "i") is None
    assert open_whole(tmp_path / "i") is not None


def test_starts_of_one_bucket_keep_what_each_has_listed(tmp_path: Path) -> None:
    listings = Listings("s3://photos", tmp_path / "indexes", {})

    def listed(*names: bytes) -> tuple[Path, Index]:
        write_index(made := listings.of_this_start(), [], [IndexEntry(name, OBJECT, target=b"etag") for name in names])
        return listings.named(made)

    first, second, again = listed(b"a.jpg"), listed(b"a.jpg", b"b.jpg"), listed(b"a.jpg")
    assert len(first[1]) == 1 and len(second[1]) == 2 and first[0] == again[0] != second[0]
    _age(first[0], second[0])
    del second
    listed(b"c.jpg")
    assert [path.exists() for path in (first[0], again[0])] == [True, True] and len([*first[0].parent.iterdir()]) == 2
