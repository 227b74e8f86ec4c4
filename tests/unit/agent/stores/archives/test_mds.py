"""MDS sets as archives of pictures: which lie in them, by which names, and what is refused."""

from __future__ import annotations

import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from storage_agent.stores.archives import index_child, indexing, mds
from storage_agent.stores.archives.archive_locations import ArchiveLocation, containers_of
from storage_agent.stores.archives.members import ArchiveRefused
from tests.support.mds import Columns, set_of, shard_of
from tests.unit.agent.stores.archives.made_archives import Opened, refused


def pictures(count: int) -> list[bytes]:
    """JPEG files as far as their first bytes go, all of their own, with lengths that differ."""
    drawn = random.Random(count)
    return [b"\xff\xd8\xff" + drawn.randbytes(200 + drawn.randrange(100)) for _ in range(count)]


def labelled(values: list[bytes]) -> list[list[bytes]]:
    return [[value, struct.pack("<q", number)] for number, value in enumerate(values)]


def rows_of(index: Path, column: str = "") -> list[tuple[str, bytes]]:
    """(name, bytes that lie where the index would say) of each sample; by the readers alone, without their process."""
    rows = []
    for shard in mds.read_set(str(index), column):
        path = index.parent / shard.name
        with open(path, "rb") as file:
            members = mds.read_shard(file, os.stat(path).st_size, lambda at: None, shard)
        content = path.read_bytes()
        for one in members.entries():
            value = content[one.offset : one.offset + one.length]
            assert zlib.crc32(value) == one.crc
            rows.append((one.name.decode(), value))
    return rows


COLUMNS: dict[str, Columns] = {
    "the only one": {"image": ("jpeg", None)},
    "between others": {"caption": ("str", None), "image": ("png", None), "label": ("int", 8), "more": ("json", None)},
    "behind fixed ones": {"a": ("int", 8), "b": ("ndarray:uint8:3", 3), "z": ("bytes", None)},
    "bytes besides others": {"hash": ("bytes", None), "image": ("bytes", None), "pickled": ("pkl", None)},
    "a file besides bytes": {"image": ("jpeg", None), "thumbnail": ("bytes", None)},
}


@pytest.mark.parametrize("name", COLUMNS)
def test_each_sample_is_where_its_picture_lies(tmp_path: Path, name: str) -> None:
    """The column of pictures is found by its encoding, or by the first bytes of columns of bytes."""
    columns, made, drawn = COLUMNS[name], pictures(9), random.Random(1)
    picture = next(one for one in columns if one in ("image", "z"))
    samples = [
        [value if one == picture else drawn.randbytes(drawn.randrange(9) if size is None else size)
         for one, (_, size) in columns.items()]
        for value in made
    ]  # fmt: skip
    index = set_of(tmp_path, {"shard.00000": samples[:5], "1/shard.00000": samples[5:], "2/none": []}, columns)
    expected = [*(f"shard.00000/{n:08}.jpg" for n in range(5)), *(f"1/shard.00000/{n:08}.jpg" for n in range(4))]
    assert rows_of(index) == [*zip(expected, made, strict=True)]


def test_a_set_without_samples(tmp_path: Path) -> None:
    assert rows_of(set_of(tmp_path, {"s": [], "t": []}, {"image": ("bytes", None)})) == []


def test_the_column_may_be_named(tmp_path: Path) -> None:
    two: Columns = {"image": ("jpeg", None), "mask": ("png", None)}
    index = set_of(tmp_path, {"s": [[b"\xff\xd8\xff1", b"\x89PNG\r\n\x1a\n2"]]}, two)
    assert rows_of(index, "mask") == [("s/00000000.png", b"\x89PNG\r\n\x1a\n2")]
    _said(index, r"must be named .* got 'image', 'mask'; write one behind .* mds://PATH#COLUMN")


def test_the_location_of_a_set(tmp_path: Path, opened: Opened) -> None:
    set_of(tmp_path / "a#1", {"s": labelled(pictures(2))})
    (tmp_path / "a#1.d").mkdir()
    for location in ("a#1", "a#1#image", "a#1/index.json", "a#1/index.json#image"):
        assert containers_of("d", f"mds://{tmp_path}/{location}") == [f"{tmp_path}/a#1/index.json"]
        assert ArchiveLocation.of(f"mds://{tmp_path}/{location}").column == ("image" if "#image" in location else "")
    refused(opened, f"mds://{tmp_path}/a#1.d", f"must be archives that are there, got {tmp_path}/a#1.d/index.json: No")
    _said(tmp_path / "a#1" / "s.mds", "must be the index.json of an MDS set, got one that is no JSON")


# --- what is refused: index.json ------------------------------------------------------------------------------


def _said(index: Path, words: str, column: str = "") -> None:
    with pytest.raises(ArchiveRefused, match=words) as caught:
        rows_of(index, column)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("columns", "named", "words"),
    [
        ({"image": ("pil", None)}, "", r"got 'image \(pil\)'; 'pil' is no file of a picture: .* 'png' or 'jpeg'"),
        ({"image": ("pil", None)}, "image", r"must have column 'image' of pictures, .*; 'pil' is no file"),
        ({"images": ("list[jpeg]", None), "label": ("int", 8)}, "", r"'list\[jpeg\]' is no file of a picture"),
        ({"p": ("pkl", None), "text": ("str", None)}, "", r"must have a column .* got 'p \(pkl\)', 'text \(str\)'$"),
        ({"p": ("pkl", None)}, "p", "must have column 'p' of pictures"),
        ({"image": ("jpeg", None)}, "none", r"must have column 'none' of pictures, .* got 'image \(jpeg\)'$"),
        ({"hash": ("bytes", None)}, "", r"must have a column of pictures, .* got 'hash \(bytes\)'"),
        ({f"c{n:03}": ("int", 8) for n in range(100)}, "", r"'c019 \(int\)', \.\.\.$"),
    ],
)
def test_columns_that_are_none_of_pictures(tmp_path: Path, columns: Columns, named: str, words: str) -> None:
    index = set_of(tmp_path, {"s": [[bytes(size or 9) for _, size in columns.values()]]}, columns)
    _said(index, words, named)


def _told(index: Path, change: Callable[[Any], Any]) -> None:
    """Change what an index.json tells; by a text in place of it all, if one comes back."""
    told = json.loads(index.read_text())
    changed = change(told)
    index.write_text(changed if isinstance(changed, str) else json.dumps(told))


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no JSON": (lambda told: "{", "must be the index.json of an MDS set, got one that is no JSON"),
    "deep JSON": (lambda told: "[" * 100_000, "got one that is no JSON"),
    "a number without end": (lambda told: '{"version": ' + "9" * 5000 + "}", "got one that is no JSON"),
    "a list": (lambda told: "[]", "its set must have 'shards', a list, got None"),
    "shards of another type": (lambda told: told.update(shards={}), r"must have 'shards', a list, got \{\}"),
    "no shards": (lambda told: told.update(shards=[]), "must list from 1 to 100000 shards, got 0"),
    "a shard that is none": (lambda told: told["shards"].append(3), "shard 1 must have 'format', text, got None"),
    "another format": (lambda told: told["shards"][0].update(format="csv"), "shard 0 must have format 'mds' .* 'csv'"),
    "another version": (lambda told: told["shards"][0].update(version=1), "must have format 'mds' and version 2"),
    "no raw data": (lambda told: told["shards"][0].update(raw_data=None), "shard 0 must have 'raw_data', an object"),
    "no samples": (lambda told: told["shards"][0].pop("samples"), "shard 0 must have 'samples', a number from 0"),
    "samples that are true": (lambda told: told["shards"][0].update(samples=True), "'samples', a number .* got True"),
    "samples below 0": (lambda told: told["shards"][0].update(samples=-1), "'samples', a number .* got -1"),
    "many samples": (lambda told: told["shards"][0].update(samples=1 << 40), "at most 16777216 samples"),
    "more samples": (lambda told: told["shards"][0].update(samples=1000), "1000 samples that index.json tells, got"),
    "one sample more": (lambda told: told["shards"][0].update(samples=4), "4 samples that index.json tells, got 3"),
    "a size of 400 digits": (lambda told: told["shards"][0]["raw_data"].update(bytes=10**400), "'bytes', a number"),
    "another size": (lambda told: told["shards"][0]["raw_data"].update(bytes=99), "the 99 bytes .* got"),
    "a size in words": (lambda told: told["shards"][0]["raw_data"].update(bytes="9"), "'bytes', a number"),
    "a name of a number": (lambda told: told["shards"][0]["raw_data"].update(basename=9), "'basename', text, got 9"),
    "no columns": (lambda told: told["shards"][0].pop("column_names"), "shard 0 must have 'column_names', a list"),
    "fewer sizes": (lambda told: told["shards"][0].update(column_sizes=[None]), "for each column, .*, got 2, 2 and 1"),
    "a column twice": (lambda told: told["shards"][0].update(column_names=["a", "a"]), "each name once"),
    "a column of no bytes": (lambda told: told["shards"][0].update(column_sizes=[None, 0]), "of 1 to 2"),
    "a column below 0": (lambda told: told["shards"][0].update(column_sizes=[None, -8]), "of 1 to 2"),
    "another fixed size": (lambda told: told["shards"][0].update(column_sizes=[None, 9]), "sample 0 must have as many"),
    "other columns": (
        lambda told: told["shards"].append({**told["shards"][0], "column_encodings": ["png", "int"]}),
        "must all have the same columns, got others in shard 1",
    ),
    "a shard twice": (lambda told: told["shards"].append(told["shards"][0]), "each shard once, got 's.mds' twice"),
    "a compressed shard": (
        lambda told: told["shards"][0].update(
            compression="zstd:3", zip_data={"basename": "t.mds.zstd"}, raw_data={"basename": "it's/t.mds", "bytes": 9}
        ),
        r"only as 'zstd:3'; decompress them: for f in '.*/it'\"'\"'s'/\*.zstd; do zstd -d \"\$f\" .* compression=None",
    ),
    "compressed by another program": (
        lambda told: told["shards"][0].update(
            compression="snappy", zip_data={}, raw_data={"basename": "t.mds", "bytes": 9}
        )
        or told["shards"][0]["zip_data"].update(basename="t.mds.snappy"),
        "got 't.mds' only as 'snappy'; write the set again",
    ),
    "a shard that is gone": (
        lambda told: told["shards"][0]["raw_data"].update(basename="t.mds"), "must be in its folder, got no file 't"
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_an_index_json_that_lies(tmp_path: Path, lie: str) -> None:
    index = set_of(tmp_path, {"s": labelled(pictures(3))})
    change, words = LIES[lie]
    _told(index, change)
    _said(index, words)


@pytest.mark.parametrize("name", ["/etc/x.mds", "../x.mds", "a/../../x.mds", "..", "", ".", "a//s", "\0", "\ud800"])
def test_a_shard_outside_the_folder(tmp_path: Path, name: str) -> None:
    index = set_of(tmp_path / "set", {"s": labelled(pictures(1))})
    (tmp_path / "x.mds").write_bytes(shard_of([]))
    _told(index, lambda told: told["shards"][0]["raw_data"].update(basename=name))
    _said(index, "must have plain paths within its folder, got")


def test_a_link_out_of_the_folder(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused by the process that parses the index.json, and by the one that takes its word for nothing."""
    index = set_of(tmp_path / "set", {"s": labelled(pictures(1))})
    (tmp_path / "set" / "s.mds").rename(tmp_path / "s.mds")
    (tmp_path / "set" / "s.mds").symlink_to("../s.mds")
    _said(index, "must lie in its folder, got 's.mds', a link that leads out of it; copy the file there")
    told = json.dumps({"error": "", "shards": [{"name": "s.mds", "nbytes": 9, "samples": 1, "sizes": [], "column": 0}]})
    monkeypatch.setattr(indexing.subprocess, "run", Mock(return_value=Mock(stdout=told)))
    refused(opened, f"mds://{tmp_path}/set", "got 's.mds', a link that leads out of it")
    (tmp_path / "link").symlink_to("set")
    (tmp_path / "set" / "s.mds").unlink()
    (tmp_path / "s.mds").rename(tmp_path / "set" / "s.mds")
    assert rows_of(tmp_path / "link" / "index.json")


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = set_of(tmp_path, {"s": labelled(pictures(1)), "t": []})
    monkeypatch.setattr(mds, "MAX_CONTAINERS", 1)
    _said(index, "must list from 1 to 1 shards, got 2")
    monkeypatch.setattr(mds, "MAX_SET_NBYTES", 100)
    _said(index, "must have at most 100 bytes, got more")
    monkeypatch.setattr(index_child, "read_set", Mock(side_effect=MemoryError))
    with pytest.raises(ArchiveRefused, match=r"index\.json needs more memory than there is to read it; make several"):
        index_child._listed(str(index), "")


# --- what is refused: shards ----------------------------------------------------------------------------------


def _damaged(at: int, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into("<I", data, at, value)


DAMAGES: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "another count": (_damaged(0, 2), "must have the 3 samples that index.json tells, got 2"),
    "an offset in the header": (_damaged(4, 8), "sample 0 must lie behind the one before it .* got 8 to"),
    "an offset that goes back": (_damaged(12, 60), r"sample 1 must lie behind the one before .* to 60; copy it again"),
    "an end outside": (_damaged(16, 1 << 31), "sample 2 must lie .* to 2147483648"),
    "an offset elsewhere": (_damaged(8, 100), "sample 0 must have as many bytes as its columns, got"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_lies(tmp_path: Path, damage: str) -> None:
    index = set_of(tmp_path, {"s": labelled(pictures(3))})
    change, words = DAMAGES[damage]
    data = bytearray((tmp_path / "s.mds").read_bytes())
    change(data)
    (tmp_path / "s.mds").write_bytes(data)
    _said(index, words)


@pytest.mark.parametrize("encoding", ["jpeg", "bytes"])
def test_a_shard_cut_anywhere(tmp_path: Path, encoding: str) -> None:
    """Also where index.json tells the size that is left, and where its first sample says what the column is."""
    index = set_of(tmp_path, {"s": [[value] for value in pictures(2)]}, {"image": (encoding, None)})
    whole = (tmp_path / "s.mds").read_bytes()
    for nbytes in [*range(0, 60, 5), len(whole) // 2, len(whole) - 1]:
        (tmp_path / "s.mds").write_bytes(whole[:nbytes])
        _said(index, "bytes that index.json tells, got")
        _told(index, lambda told, nbytes=nbytes: told["shards"][0]["raw_data"].update(bytes=nbytes))
        _said(index, r"must have the 2 samples|sample \d must lie")
        _told(index, lambda told: told["shards"][0]["raw_data"].update(bytes=len(whole)))


def test_a_value_that_is_longer_than_its_sample(tmp_path: Path) -> None:
    index = set_of(tmp_path, {"s": labelled(pictures(3))})
    data = bytearray((tmp_path / "s.mds").read_bytes())
    for length in (0, 1 << 31, 0xFFFFFFFF):
        struct.pack_into("<I", data, struct.unpack_from("<I", data, 8)[0], length)
        (tmp_path / "s.mds").write_bytes(data)
        _said(index, "sample 1 must have as many bytes as its columns")


@pytest.mark.parametrize(("value", "words"), [(b"", r"got 0 bytes that begin with b''"), (b"GIF89a", "got 6 bytes")])
def test_a_sample_that_has_no_picture_is_named(tmp_path: Path, value: bytes, words: str) -> None:
    index = set_of(tmp_path, {"s": labelled([*pictures(8), value])})
    _said(index, f"its sample 8 must have a picture of a kind that is served .* {words}.*; leave out the sample")


# --- by the store ---------------------------------------------------------------------------------------------


def test_shards_are_folders_in_the_order_of_the_set(tmp_path: Path, opened: Opened) -> None:
    made = labelled(pictures(6))
    set_of(tmp_path, {f"shard.{n:05}": made[2 * n : 2 * n + 2] for n in range(3)})
    store = opened(f"mds://{tmp_path}")
    files = sorted(f"{where}/{name}" for where, _, names in store.walk("") for name in names)
    assert files == [f"shard.{n // 2:05}/{n % 2:08}.jpg" for n in range(6)]
    assert [store.read(name) for name in files] == pictures(6)


def test_a_changed_index_json_is_another_index(tmp_path: Path, opened: Opened) -> None:
    """One that names another column as the picture's, beside shards that stay as they are."""
    two: Columns = {"a": ("jpeg", None), "b": ("bytes", None)}
    index = set_of(tmp_path, {"s": [[b"\xff\xd8\xff-a", b"\xff\xd8\xff-b"]], "t": []}, two)
    assert opened(f"mds://{tmp_path}").read("s/00000000.jpg") == b"\xff\xd8\xff-a"
    _told(index, lambda told: [one.update(column_encodings=["str", "bytes"]) for one in told["shards"]] and None)
    assert opened(f"mds://{tmp_path}").read("s/00000000.jpg") == b"\xff\xd8\xff-b"
