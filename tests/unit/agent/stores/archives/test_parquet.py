"""Parquet files as archives of pictures: which lie in them as they are, by which names, and what is refused."""

from __future__ import annotations

import base64
import errno
import os
import random
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from sophon_loader.errors import ConfigError, SampleUnreadable
from storage_agent.stores.archives.archive_locations import ArchiveLocation
from storage_agent.stores.archives.members import ArchiveRefused
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
    with open(path, "rb") as file:
        members = parquet.read_parquet(file, os.stat(path).st_size, lambda at: None, folder="t", column=column)
        content = path.read_bytes()
    assert all(zlib.crc32(content[one.offset : one.offset + one.length]) == one.crc for one in members.entries())
    return [(one.name.decode(), content[one.offset : one.offset + one.length]) for one in members.entries()]


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


@pytest.mark.parametrize("codec", ["snappy", "zstd", "lz4", "gzip"])
def test_compressed_pictures_are_counted(tmp_path: Path, codec: str) -> None:
    path = table_of(tmp_path / "t.parquet", pictures(20), compression=codec)
    _said(path, r'got 20 of 20 that are compressed; write the table anew: .*compression="none"')


@pytest.mark.parametrize("encoding", ["DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
def test_pictures_of_which_only_a_difference_is_written(tmp_path: Path, encoding: str) -> None:
    path = table_of(
        tmp_path / "t.parquet",
        {"image": structs(pictures(9))},
        use_dictionary=False,
        column_encoding={"image.bytes": encoding},
    )
    _said(path, "got 9 of 9 that are encoded")


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
    told |= {"dictionary_page_offset": None, "data_page_offset": 4, "total_compressed_size": 900, **changed}
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


def test_a_file_that_is_replaced_under_its_index(tmp_path: Path, opened: Opened) -> None:
    """By one of equal size: its time of change tells; if that is equal, too, the pictures' checksums do."""
    made = pictures(9)
    path = table_of(tmp_path / "t.parquet", made)
    store, other = opened(path), opened(path)
    content, status = path.read_bytes(), os.stat(path)
    (tmp_path / "new").write_bytes(content.replace(made[4], bytes(len(made[4]))))
    os.replace(tmp_path / "new", path)
    with pytest.raises(SampleUnreadable, match=r"t\.parquet, which has changed, for 't/00000004.jpg'"):
        store.read("t/00000004.jpg")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert other.read("t/00000005.jpg") == made[5]
    with pytest.raises(SampleUnreadable, match=r"its index notes, .* 't/00000004.jpg' .* copy it anew"):
        other.read("t/00000004.jpg")
