"""Parquet files as archives of pictures: which lie in them as they are, by which names, and what is refused."""

from __future__ import annotations

import base64
import errno
import logging
import os
import random
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sophon_loader.errors import ConfigError, SampleUnreadable
from storage_agent.stores.archives import indexing, unpacked
from storage_agent.stores.archives.archive_locations import ArchiveLocation
from storage_agent.stores.archives.index import UNFINISHED_S
from storage_agent.stores.archives.members import ArchiveRefused
from storage_agent.stores.archives.unpacked import UnpackedPictures
from tests.unit.agent.stores.archives.made_archives import Opened, refused

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sophon_loader[tables]'")
pq = pytest.importorskip("pyarrow.parquet")
pqe = pytest.importorskip("pyarrow.parquet.encryption")
parquet = pytest.importorskip("storage_agent.stores.archives.parquet")

KmsClient: Any = pqe.KmsClient
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""What Hugging Face's datasets make of a picture."""


def pictures(count: int, nbytes: int = 300) -> list[bytes]:
    """JPEG files as far as their first bytes go, all of their own, with lengths that differ."""
    drawn = random.Random(count)
    return [b"\xff\xd8\xff" + drawn.randbytes(nbytes + drawn.randrange(100)) for _ in range(count)]


def structs(values: Sequence[bytes | None]) -> Any:
    return pa.array([{"bytes": value, "path": f"{n}.jpg"} for n, value in enumerate(values)], STRUCT)


def table_of(path: Path, columns: dict[str, Any] | Sequence[bytes], **options: Any) -> Path:
    """A parquet file of these columns, or of one of pictures; by default as datasets write it."""
    if not isinstance(columns, dict):
        columns = {"image": structs(columns), "label": pa.array(range(len(columns)))}
    options = {"compression": {"image.bytes": "none"}, "row_group_size": 7, **options}
    pq.write_table(pa.table(columns), path, **options)
    return path


def rows_of(path: Path, column: str = "") -> list[tuple[str, bytes]]:
    """(name, bytes that lie where the index would say) of each row; by the reader alone, without its process."""
    with open(path, "rb") as file, UnpackedPictures(path.with_suffix(".unpacked")) as taken:
        told = {"folder": "t", "column": column, "unpacked": taken}
        members = parquet.read_parquet(file, os.stat(path).st_size, lambda at: None, **told)
        taken.keep(1)
    contents = [path.read_bytes(), path.with_suffix(".unpacked").read_bytes() if taken.count else b""]
    rows = []
    for one in members.entries():
        value = contents[one.container][one.offset : one.offset + one.length]
        assert zlib.crc32(value) == one.crc
        rows.append((one.name.decode(), value))
    return rows


def files_of(store: Any) -> list[str]:
    return sorted(f"{where}/{name}" for where, _, names in store.walk("") for name in names)


WRITERS: dict[str, dict[str, Any]] = {
    "datasets": {},
    "one row group": {"row_group_size": 1 << 20},
    "no dictionary": {"use_dictionary": False},
    "a dictionary that gets full": {"dictionary_pagesize_limit": 1000, "write_batch_size": 2, "row_group_size": 100},
    "small pages": {"use_dictionary": False, "data_page_size": 500, "write_batch_size": 1},
    "second pages": {"data_page_version": "2.0", "use_dictionary": False},
    "checksums and a page index": {"write_page_checksum": True, "write_page_index": True},
    "snappy": {"compression": "snappy"},
    "zstd without a dictionary": {"compression": "zstd", "use_dictionary": False},
    "lz4 in second pages": {"compression": "lz4", "data_page_version": "2.0"},
    "gzip": {"compression": "gzip", "row_group_size": 1 << 20},
    "lengths apart": {"use_dictionary": False, "column_encoding": {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"}},
    "differences": {"use_dictionary": False, "column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}},
}


@pytest.mark.parametrize("writer", WRITERS)
def test_each_row_is_where_its_picture_lies(tmp_path: Path, writer: str) -> None:
    """Whatever pages are like, also where a picture comes again, far behind or at once."""
    made = pictures(40)
    values = [*made[:20], made[3], made[3], *made[20:], made[39], b"\xff\xd8\xff", made[0]]
    path = table_of(tmp_path / "t.parquet", values, **WRITERS[writer])
    assert rows_of(path) == [(f"t/{row:08}.jpg", value) for row, value in enumerate(values)]


def test_the_first_bytes_tell_the_suffix(tmp_path: Path) -> None:
    firsts = [b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF1234WEBP", b"BM", b"II*\0", b"MM\0*", b"P6", b"P5"]
    suffixes = ["jpg", "png", "webp", "bmp", "tif", "tif", "ppm", "pgm"]
    rows = rows_of(table_of(tmp_path / "t.parquet", firsts))
    assert [name for name, _ in rows] == [f"t/{row:08}.{suffix}" for row, suffix in enumerate(suffixes)]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"id": pa.string(), "image": STRUCT, "raw": pa.binary()}, ""),
        ({"caption": pa.string(), "jpg": pa.binary(), "more": pa.list_(pa.binary())}, ""),
        ({"jpg": pa.large_binary()}, ""),
        ({"mask": STRUCT, "image": STRUCT}, "image"),
        ({"image": STRUCT, "raw": pa.binary()}, "raw"),
    ],
)
def test_the_column_is_found_or_named(tmp_path: Path, columns: dict[str, Any], named: str) -> None:
    made = pictures(3)
    wanted = named or next(name for name, kind in columns.items() if kind in (STRUCT, pa.binary(), pa.large_binary()))
    arrays = {name: pa.nulls(3, kind) for name, kind in columns.items()}
    arrays[wanted] = structs(made) if columns[wanted] == STRUCT else pa.array(made, columns[wanted])
    assert [value for _, value in rows_of(table_of(tmp_path / "t.parquet", arrays, compression="none"), named)] == made


@pytest.mark.parametrize(
    ("location", "path", "column"),
    [
        ("parquet:///d/{0..1}.parquet#image", "/d/{0..1}.parquet", "image"),
        ("parquet:///d#1/x.parquet", "/d#1/x.parquet", ""),
        ("tar:///d/x.tar#1", "/d/x.tar#1", ""),
    ],
)
def test_the_column_in_a_location(location: str, path: str, column: str) -> None:
    assert ArchiveLocation.of(location) == ArchiveLocation(location.partition(":")[0], path, column)


def test_a_file_whose_name_ends_like_a_column(tmp_path: Path) -> None:
    (tmp_path / "x#1").touch()
    assert ArchiveLocation.of(f"parquet://{tmp_path}/x#1").column == ""


# --- what is refused ------------------------------------------------------------------------------------------


def _said(path: Path, words: str, column: str = "") -> None:
    with pytest.raises(ArchiveRefused, match=words) as caught:
        rows_of(path, column)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize(
    ("columns", "named", "words"),
    [
        (
            {"mask": STRUCT, "image": STRUCT},
            "",
            "must be named .* got 'mask', 'image'; write one .* parquet://PATH#COLUMN",
        ),
        ({"a": pa.binary(), "b": pa.binary()}, "", "got 'a', 'b'; write one"),
        ({"image": STRUCT}, "none", "must have column 'none' of pictures, .* got 'image'"),
        (
            {"images": pa.list_(STRUCT), "text": pa.string()},
            "",
            "must have a column of pictures, .* got 'images', 'text'",
        ),
        ({"images": pa.list_(pa.binary())}, "images", "must have column 'images' .* no list of them"),
        ({"deep": pa.struct([("image", STRUCT)])}, "deep", "must have column 'deep'"),
        ({f"c{n}": pa.int8() for n in range(100)}, "", r"got 'c0', .*'c19', \.\.\.$"),
    ],
)
def test_columns_that_are_none_of_pictures(tmp_path: Path, columns: dict[str, Any], named: str, words: str) -> None:
    arrays = {name: pa.nulls(1, kind) for name, kind in columns.items()}
    _said(table_of(tmp_path / "t.parquet", arrays, compression="none"), words, named)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (None, "its row 8 must have a picture, got none; remove the row, or put"),
        ({"bytes": None, "path": "/data/8.jpg"}, "its row 8 must have a picture, got none"),
        ({"bytes": b"", "path": ""}, r"its row 8 .* got 0 bytes that begin with b''"),
        (
            {"bytes": b"GIF89a of another kind", "path": ""},
            r"row 8 .* \(bmp, jpg, .*\), got 22 bytes .* b'GIF89a of an'",
        ),
    ],
)
def test_a_row_that_has_no_picture_is_named(tmp_path: Path, row: Any, words: str) -> None:
    rows = [*({"bytes": value, "path": ""} for value in pictures(8)), row]
    _said(table_of(tmp_path / "t.parquet", {"image": pa.array(rows, STRUCT)}), words)


def test_damaged_files(tmp_path: Path) -> None:
    content = table_of(tmp_path / "t.parquet", pictures(20)).read_bytes()
    for damaged in (b"", b"PAR1", bytes(5000), content[:-1], content[:3000], content[:4] + content[800:]):
        (tmp_path / "x.parquet").write_bytes(damaged)
        _said(tmp_path / "x.parquet", "must be a whole parquet file that is not encrypted|must lie")


def _metadata(**changed: Any) -> Any:
    """A footer that tells of one row group, in a file of 1000 bytes."""
    told: dict[str, Any] = {
        "compression": "UNCOMPRESSED",
        "encodings": ("PLAIN", "RLE"),
        "path_in_schema": "image.bytes",
    }
    told |= {"dictionary_page_offset": None, "data_page_offset": 4, "total_compressed_size": 900}
    told |= {"total_uncompressed_size": 900, **changed}
    group = SimpleNamespace(num_rows=1, column=lambda number: SimpleNamespace(**told))
    return SimpleNamespace(num_rows=1, num_row_groups=1, row_group=lambda number: group)


@pytest.mark.parametrize(
    "changed",
    [
        {"total_compressed_size": 997}, {"total_compressed_size": -1}, {"data_page_offset": -4},
        {"data_page_offset": 1001}, {"dictionary_page_offset": -9}, {"data_page_offset": 1 << 63},
    ],
)  # fmt: skip
def test_a_footer_that_lies_about_places(changed: dict[str, int]) -> None:
    parquet._chunks(_metadata(), 0, 1000)
    with pytest.raises(ArchiveRefused, match=r"row group 0 must lie within its 1000 bytes, got .* copy it again"):
        parquet._chunks(_metadata(**changed), 0, 1000)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table_of(tmp_path / "t.parquet", pictures(20))
    monkeypatch.setattr(parquet, "MAX_MEMBERS", 19)
    _said(path, "at most 19 rows, got 20; make several files of it")
    monkeypatch.undo()
    monkeypatch.setattr(parquet, "MAX_CHUNK_NBYTES", 1000)
    _said(path, r"at most 1000 bytes of pictures, got \d+ in row group 0; .*row_group_size=100")
    packed = table_of(tmp_path / "p.parquet", [made + bytes(9000) for made in pictures(2)], compression="zstd")
    _said(packed, r"at most 1000 bytes of pictures, got 1\d{4} in row group 0; .*row_group_size=100")
    monkeypatch.undo()
    for error in (MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")):
        monkeypatch.setattr(parquet.mmap, "mmap", Mock(side_effect=error))
        _said(path, "more memory than there is to index it; .*row_group_size=100")


class _Kms(KmsClient):
    """Keys that are wrapped in nothing."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return base64.b64encode(key_bytes).decode()


@pytest.mark.parametrize("plain_footer", [False, True])
def test_encrypted_files(tmp_path: Path, plain_footer: bool) -> None:
    factory = pqe.CryptoFactory(lambda configuration: _Kms())
    told = pqe.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["image.bytes"]}, plaintext_footer=plain_footer, internal_key_material=True
    )
    keys = factory.file_encryption_properties(pqe.KmsConnectionConfig(), told)
    path = table_of(tmp_path / "t.parquet", pictures(9), encryption_properties=keys)
    _said(path, "must be a whole parquet file that is not encrypted, got")


# --- by the store ---------------------------------------------------------------------------------------------


def test_several_files_are_a_folder_each(tmp_path: Path, opened: Opened) -> None:
    made = pictures(6)
    for number in range(3):
        table_of(tmp_path / f"train-{number:05}.parquet", made[number * 2 : number * 2 + 2])
    table_of(tmp_path / "train-00003.parquet", [])
    store = opened(f"parquet://{tmp_path}/train-{{00000..00003}}.parquet#image")
    assert files_of(store) == [f"train-{row // 2:05}/{row % 2:08}.jpg" for row in range(6)]
    assert [store.read(name) for name in files_of(store)] == made
    assert store.size("train-00000/00000000.jpg") == len(made[0])


def test_another_column_is_another_index(tmp_path: Path, opened: Opened) -> None:
    first, second = pictures(2), pictures(3)[:2]
    path = table_of(tmp_path / "t.parquet", {"image": structs(first), "mask": structs(second)}, compression="none")
    for column, made in (("image", first), ("mask", second)):
        assert opened(f"parquet://{path}#{column}").read("t/00000001.jpg") == made[1]


def test_an_export_without_pictures(tmp_path: Path, opened: Opened) -> None:
    refused(opened, table_of(tmp_path / "t.parquet", []), "t.parquet", "nothing to serve")
    refused(opened, f"parquet://{tmp_path}", "which is none; write its path", "/*.parquet for the archives in it")
    (tmp_path / "x.parquet").write_bytes(b"no table")
    refused(opened, tmp_path / "x.parquet", "x.parquet cannot be served: it must be a whole parquet file")


def test_a_footer_at_which_pyarrow_ends_the_process(tmp_path: Path, opened: Opened) -> None:
    """Version 26 does, by a codec that it does not know; the start says so, and goes on to no other end."""
    path = table_of(tmp_path / "t.parquet", pictures(2))
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x05bytes\x15\x00", b"\x05bytes\x15\x28"))
    assert path.read_bytes() != content
    with pytest.raises(ConfigError, match=r"ended with status -6, .* index parquet://PATH|pyarrow does not read"):
        opened(path)


# --- compressed pictures ----------------------------------------------------------------------------------------


def test_compressed_pictures_are_unpacked_once(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several files, those that need it; each start says how many, and what to write instead."""
    made = [*pictures(4), pictures(5)[0], pictures(4)[0]]
    table_of(tmp_path / "a.parquet", made[:3])
    table_of(tmp_path / "b.parquet", made[3:], compression="snappy", row_group_size=3)
    location = f"parquet://{tmp_path}/*.parquet"
    facts = {"count": 3, "of": 6, "nbytes": sum(map(len, made[3:])), "first": f"{tmp_path}/b.parquet"}
    for _ in ("made", "found"):
        with caplog.at_level(logging.WARNING):
            store = opened(location)
        assert [store.read(name) for name in files_of(store)] == made
        (said,) = (one.__dict__["details"] for one in caplog.records if one.message == "compressed pictures unpacked")
        assert facts.items() <= said.items() and 'write_table(table, NEW, compression="none"' in said["remedy"]
        caplog.clear()
        monkeypatch.setattr(indexing, "_asked", Mock(side_effect=AssertionError("made again")))


@pytest.mark.parametrize("count", [1, 2])
def test_unpacked_pictures_that_are_gone_are_made_again(tmp_path: Path, opened: Opened, count: int) -> None:
    """For the next start; the first one reads them then, too, since they are the same file to it."""
    made = pictures(3)
    for number in range(count):
        table_of(tmp_path / f"{number}.parquet", made, compression="zstd")
    location = f"parquet://{tmp_path}/*.parquet" if count > 1 else tmp_path / "0.parquet"
    store = opened(location)
    os.unlink(store.found.unpacked[0])
    with pytest.raises(SampleUnreadable, match=r"\.unpacked, which is gone, for '0/00000001.jpg' .* restart the agent"):
        store.read("0/00000001.jpg")
    again = opened(location)
    assert again.describe() == store.describe()
    assert again.read("0/00000001.jpg") == store.read("0/00000001.jpg") == made[1]


def test_a_table_that_is_replaced_behind_its_unpacked_pictures(tmp_path: Path, opened: Opened) -> None:
    """Its pictures are those of another table, whatever lies unpacked."""
    path = table_of(tmp_path / "t.parquet", pictures(3), compression="zstd")
    store = opened(path)
    table_of(tmp_path / "t.parquet", pictures(4), compression="zstd")
    with pytest.raises(SampleUnreadable, match=r"t\.parquet, which has changed, for 't/00000001.jpg'"):
        store.read("t/00000001.jpg")
    assert opened(path).read("t/00000001.jpg") == pictures(4)[1]


def test_unpacked_pictures_that_are_damaged(tmp_path: Path, opened: Opened) -> None:
    store = opened(table_of(tmp_path / "t.parquet", pictures(3), compression="zstd"))
    (unpacked,) = store.found.unpacked
    status = os.stat(unpacked)
    Path(unpacked).write_bytes(bytes(status.st_size))
    os.utime(unpacked, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SampleUnreadable, match=r"'t/00000001.jpg' .*\.unpacked; .* remove this file, and restart"):
        store.read("t/00000001.jpg")


def test_no_room_for_unpacked_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the first is unpacked, by the footer; and at the one that it hid; nothing is left behind."""
    path = table_of(tmp_path / "t.parquet", pictures(3), compression="zstd")
    room = Mock(return_value=SimpleNamespace(free=1000))
    monkeypatch.setattr(unpacked.shutil, "disk_usage", room)
    _said(path, r"half of the free space of .*, 500 bytes, .* got \d+ bytes; give .* --index-folder .*compression=")
    monkeypatch.setattr(parquet._Chunk, "nbytes", 0)
    _said(path, r"half of the free space of .*, 500 bytes, .* got \d+ bytes")
    room.return_value = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(unpacked.tempfile, "mkstemp", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    _said(path, "must be unpacked into .*, got an error: .*Read-only.*; give the agent another --index-folder")
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_unpacked_pictures_without_an_index_are_removed(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day after they were written; their time of change is their table's, which may be old."""
    path = table_of(tmp_path / "t.parquet", pictures(3), compression="zstd")
    (first,) = opened(path).found.unpacked
    table_of(path, pictures(4), compression="zstd")
    Path(first).with_suffix(".index").unlink()
    (second,) = opened(path).found.unpacked
    assert {first, second} <= set(map(str, Path(first).parent.iterdir()))
    monkeypatch.setattr(indexing.time, "time", Mock(return_value=time.time() + 2 * UNFINISHED_S))
    indexing._remove_older(Path(second).with_suffix(".index"))
    assert not os.path.exists(first) and os.path.exists(second)
