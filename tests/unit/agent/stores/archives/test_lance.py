"""Lance sets as archives of pictures: which lie in them as they are, by which names, and what is refused."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sophon_loader.errors import SampleUnreadable
from storage_agent.stores.archives.members import ArchiveRefused
from tests.support.lance_sets import write_lance
from tests.unit.agent.stores.archives.made_archives import Opened, refused

lance: Any = pytest.importorskip("lance", reason="pylance is not installed: pip install 'sophon_loader[lance]'")
pa: Any = pytest.importorskip("pyarrow")
sets: Any = pytest.importorskip("storage_agent.stores.archives.lance")
SMALL = {"inline_size_threshold": 1000, "dedicated_size_threshold": 20_000}
"""Sizes in bytes above which a picture lies in a file with others, and in one of its own."""


def pictures(*sizes: int) -> list[bytes]:
    """JPEG files as far as their first bytes go, all of their own."""
    drawn = random.Random(sum(sizes))
    return [b"\xff\xd8\xff" + drawn.randbytes(nbytes) for nbytes in sizes]


def rows_of(path: Path, column: str = "") -> list[tuple[str, bytes]]:
    """(name, bytes that lie where the index would say) of each row; by the reader alone, without its process."""
    version, names = sets.list_set(str(path))
    sizes = {name: os.stat(path / name).st_size for name in names}
    members = sets.read_lance(str(path), version, sizes, column, lambda at: None)
    contents = [(path / name).read_bytes() for name in names]
    return [
        (one.name.decode(), contents[one.container][one.offset : one.offset + one.length]) for one in members.entries()
    ]


def _said(path: Path, words: str, column: str = "") -> None:
    with pytest.raises(ArchiveRefused, match=words) as caught:
        rows_of(path, column)
    assert len(str(caught.value)) < 800


def test_each_row_is_where_its_picture_lies(tmp_path: Path) -> None:
    """In data files, with others and alone; in several fragments, without the rows that were deleted."""
    path = tmp_path / "t.lance"
    made = pictures(100, 2000, 30_000, 200, 3000, 40_000, 900, 300)
    for some in (made[:5], made[5:]):
        write_lance(path, some, **SMALL)
    assert rows_of(path) == [(f"t/{row:08}.jpg", value) for row, value in enumerate(made)]
    assert len(sets.list_set(str(path))[1]) == 5
    lance.dataset(str(path)).delete("label = 1")
    left = [value for row, value in enumerate(made) if row not in (1, 6)]
    assert rows_of(path) == [(f"t/{row:08}.jpg", value) for row, value in enumerate(left)]
    lance.dataset(str(path)).optimize.compact_files()
    assert [value for _, value in rows_of(path)] == left
    lance.dataset(str(path)).add_columns({"more": "label + 1"})
    assert [value for _, value in rows_of(path)] == left


def test_the_column_is_found_or_named(tmp_path: Path) -> None:
    schema = pa.schema([lance.blob_field("image"), lance.blob_field("mask"), pa.field("raw", pa.binary())])
    first, second = pictures(100), pictures(101)
    columns = {"image": lance.blob_array(first), "mask": lance.blob_array(second), "raw": first}
    path = tmp_path / "t.lance"
    lance.write_dataset(pa.table(columns, schema), str(path), data_storage_version="2.2")
    assert [value for _, value in rows_of(path, "mask")] == second
    _said(path, "must be named where several may be it, got 'image', 'mask'; .* lance://PATH#COLUMN")
    _said(path, r"column 'raw' of blobs, .* 'raw \(binary\)'; .*blob_field.*data_storage_version=.2\.2", "raw")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "its row 1 must have a picture, got none; delete the row"),
        (b"", r"its row 1 must .*, got 0 bytes that begin with b''"),
        (b"GIF89a", r"its row 1 must have a picture of a kind that is served .* b'GIF89a'; delete the row"),
    ],
)
def test_a_row_that_has_no_picture_is_named(tmp_path: Path, value: Any, words: str) -> None:
    write_lance(tmp_path / "t.lance", [*pictures(100), value])
    _said(tmp_path / "t.lance", words)


def test_a_picture_that_lies_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of the set, by the set's own word, which may name any file and any host: nothing is read there."""
    (tmp_path / "x.jpg").write_bytes(pictures(100)[0])
    array = lance.blob_array([f"file://{tmp_path}/x.jpg"])
    path, table = tmp_path / "t.lance", pa.table({"image": array}, pa.schema([lance.blob_field("image")]))
    outside = {"allow_external_blob_outside_bases": True}
    lance.write_dataset(table, str(path), data_storage_version="2.2", **outside)
    monkeypatch.setattr(lance.LanceDataset, "read_blobs", Mock(side_effect=AssertionError("it was read")))
    _said(path, "its row 0 must lie in one piece in a file of the set, got one in .*x.jpg'; write the set anew")


@pytest.mark.parametrize(
    "changed",
    [{"position": 1}, {"position": 1 << 40}, {"size": 1 << 40}, {"kind": 9}, {"kind": 1, "blob_id": 7}, {"kind": 3}],
)
def test_a_set_that_lies_about_places(tmp_path: Path, changed: dict[str, int]) -> None:
    """No place is believed whose bytes are not those of the picture."""
    path, (value,) = tmp_path / "t.lance", pictures(100)
    write_lance(path, [value])
    (name,) = sets.list_set(str(path))[1]
    true = {"kind": 0, "position": 0, "size": len(value), "blob_id": 0, "blob_uri": ""}
    sizes = {name: os.stat(path / name).st_size}
    with pytest.raises(ArchiveRefused, match=r"row 5 must lie in one piece .* a place that pylance does not tell"):
        sets._seen(str(path), sets._possible([name], sizes, {**true, **changed}, 5), value, 5)
    assert sets._seen(str(path), sets._possible([name], sizes, true, 5), value, 5) == (name, 0)


def test_damaged_sets(tmp_path: Path) -> None:
    (tmp_path / "none.lance").mkdir()
    _said(tmp_path / "none.lance", "must be a whole Lance set, got one that pylance does not read")
    path = tmp_path / "t.lance"
    write_lance(path, pictures(100, 2000, 30_000), **SMALL)
    for file in [*path.rglob("*.blob"), *path.rglob("*.manifest"), *path.rglob("data/*.lance")]:
        content = file.read_bytes()
        for damaged in (b"", content[: len(content) // 2]):
            file.write_bytes(damaged)
            _said(path, "must be a whole Lance set|must lie in one piece")
        file.write_bytes(content)
    assert rows_of(path)


def test_a_shallow_clone(tmp_path: Path) -> None:
    made = write_lance(tmp_path / "t.lance", pictures(100))
    made.shallow_clone(str(tmp_path / "clone.lance"), made.version)
    _said(tmp_path / "clone.lance", "in its folder, got .* in that of the set of which it is a shallow clone; make a")


# --- by the store ---------------------------------------------------------------------------------------------


def test_an_updated_set_is_another_content(tmp_path: Path, opened: Opened) -> None:
    """An agent goes on with the version of its start, while its files are there; the next start has the newest."""
    path, made = tmp_path / "t.lance", pictures(100, 500, 900)
    write_lance(path, made, inline_size_threshold=300, dedicated_size_threshold=700)
    before = opened(f"lance://{path}#image")
    assert before.found is not None
    assert [before.read(f"t/{row:08}.jpg") for row in range(3)] == made
    lance.dataset(str(path)).delete("label = 0")
    after = opened(f"lance://{path}#image")
    assert after.describe() != before.describe()
    assert after.read("t/00000000.jpg") == before.read("t/00000001.jpg") == made[1]
    assert opened(f"lance://{path}#image").describe() == after.describe()
    lance.dataset(str(path)).optimize.compact_files()
    for file in before.found.containers:
        os.unlink(file)
    with pytest.raises(SampleUnreadable, match=r"must stay .*, got .*/data/.*, which is gone, for 't/00000001.jpg'"):
        before.read("t/00000001.jpg")
    assert opened(f"lance://{path}").read("t/00000001.jpg") == made[2]


def test_exports_that_are_no_sets(tmp_path: Path, opened: Opened) -> None:
    refused(opened, f"lance://{tmp_path}/none", "must be the folder of a Lance set, got")
    write_lance(tmp_path / "t.lance", pictures(2000), **SMALL)
    (blob,) = (tmp_path / "t.lance").rglob("*.blob")
    shutil.move(blob, tmp_path / "x")
    blob.symlink_to(tmp_path / "x")
    refused(opened, f"lance://{tmp_path}/t.lance", "a link that leads out of it")
