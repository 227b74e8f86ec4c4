"""Archives that are not what they seem: cut, joined, with names that programs write in ways of their own."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from storage_agent.reading.listing import classes_of, images_below
from tests.unit.agent.stores.archives.made_archives import Opened, refused, tar_of, zip_of


def _doubts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, str]]:
    found = [one.__dict__["details"] for one in caplog.records if one.message == "archives that may not be whole"]
    caplog.clear()
    return [(one["reason"].partition(":")[0], one["count"], Path(one["first"]).name) for one in found]


def test_a_file_beside_a_folder_of_its_name_hides_no_class(tmp_path: Path, opened: Opened) -> None:
    """A disk has one or the other; a bucket may have both, and so may archives that are one export."""
    one, other = ("c0", b"notes"), (("c0-a/x.jpg", b"1"), ("c0/y.jpg", b"2"), ("c0/d/z.jpg", b"3"))
    tar_of(tmp_path / "0.tar", one)
    tar_of(tmp_path / "1.tar", *other)
    for location in (f"tar://{tmp_path}/{{0..1}}.tar", tar_of(tmp_path / "x.tar", one, *other)):
        store = opened(location)
        assert list(classes_of(store, "")) == ["c0", "c0-a"]
        assert [name for names in images_below(store, "c0") for name in names] == ["y.jpg", "d/z.jpg"]
        assert (store.read("c0"), store.read("c0/y.jpg"), store.size("c0/none/z.jpg")) == (b"notes", b"2", -1)


def test_a_tar_that_is_cut_between_members(tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    tar_of(tmp_path / "whole.tar", ("b/y.jpg", b"1"))
    cut = tar_of(tmp_path / "cut.tar", ("a/y.jpg", b"1"), ("a/z.jpg", b"2"))
    cut.write_bytes(cut.read_bytes()[: 2 * tarfile.BLOCKSIZE])
    opened(tmp_path / "whole.tar")
    assert _doubts(caplog) == []
    for location in (tmp_path / "cut.tar", tmp_path / "cut.tar", f"tar://{tmp_path}/{{whole,cut}}.tar"):
        opened(location)
        assert _doubts(caplog) == [("no zeros at the end", 1, "cut.tar")], "each start tells it"


@pytest.mark.parametrize("padding", [0, 3 << 20])
@pytest.mark.parametrize("is_old", [False, True])
def test_tars_that_are_joined_by_cat(tmp_path: Path, opened: Opened, is_old: bool, padding: int) -> None:
    data = tar_of(tmp_path / "x.tar", ("a.jpg", b"1")).read_bytes()
    if is_old:  # without a magic number, as before POSIX
        header = bytearray(data[:257] + bytes(255))
        header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
        data = bytes(header) + data[512:]
    (tmp_path / "x.tar").write_bytes(data + bytes(padding) + data)
    refused(opened, tmp_path / "x.tar", "got another behind its end; join them with tar -A, not with cat")


def test_zips_that_are_joined_by_cat(tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    both = [zip_of(tmp_path / name, (f"{name}.jpg", b"1")).read_bytes() for name in ("a", "b")]
    (tmp_path / "x.zip").write_bytes(b"".join(both))
    assert opened(tmp_path / "x.zip").read("b.jpg") == b"1"
    assert _doubts(caplog) == [("other members in front, which are not served", 1, "x.zip")]


def test_a_zip_with_two_names_at_one_place(tmp_path: Path, opened: Opened) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        made.writestr("a.jpg", b"pixels")
        made.writestr("b.jpg", b"pixels")
        made.filelist[1].header_offset = 0
    refused(opened, tmp_path / "x.zip", "must lie apart, got 'a.jpg' and 'b.jpg' at one place")


class _Raw(zipfile.ZipInfo):
    """A member whose name is written as these bytes."""

    def __init__(self, raw: bytes, system: int, extra: bytes = b"", flags: int = 0) -> None:
        super().__init__(raw.hex())
        self.raw, self.create_system, self.extra, self.flags = raw, system, extra, flags

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.raw, self.flags


def _path_field(raw: bytes, name: str, *, version: int = 1) -> bytes:
    """A Unicode Path behind another field."""
    content = struct.pack("<BI", version, zlib.crc32(raw)) + name.encode()
    return struct.pack("<HHB", 0xABCD, 1, 0) + struct.pack("<HH", 0x7075, len(content)) + content


UTF8 = 1 << 11
NAMES: list[tuple[str, Any]] = [
    ("café.jpg", _Raw(b"caf_.jpg", 0, _path_field(b"caf_.jpg", "café.jpg"))),
    ("thé.jpg", _Raw(b"th\x82.jpg", 3, _path_field(b"th\x82.jpg", "thé.jpg"))),
    ("stale.jpg", _Raw(b"stale.jpg", 3, _path_field(b"other.jpg", "x.jpg"))),
    ("empty.jpg", _Raw(b"empty.jpg", 0, _path_field(b"empty.jpg", ""))),
    ("dos/a/b.jpg", _Raw(b"dos\\a\\b.jpg", 0)),
    ("dos/é.jpg", _Raw("dos\\é.jpg".encode(), 0, flags=UTF8)),
    ("mixed/c\\d.jpg", _Raw(b"mixed/c\\d.jpg", 0)),
    ("unix\\e.jpg", _Raw(b"unix\\e.jpg", 3)),
    ("ntfs\\f.jpg", _Raw(b"ntfs\\f.jpg", 10)),
]
"""What a name is, and how it is written: on DOS (0), Unix (3) or Windows (10)."""


def test_names_in_a_zip_are_those_of_unzip(tmp_path: Path, opened: Opened) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        for name, member in NAMES:
            made.writestr(member, name.encode())
    store = opened(tmp_path / "x.zip")
    assert [store.read(name) for name, _ in NAMES] == [name.encode() for name, _ in NAMES]
    if shutil.which("unzip") is not None:
        command = ["unzip", "-q", f"{tmp_path}/x.zip", "-d", f"{tmp_path}/out"]
        subprocess.run(command, env={**os.environ, "LC_ALL": "C.UTF-8"}, capture_output=True, timeout=30, check=False)
        found = [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.jpg")]
        assert {*found} >= {name for name, member in NAMES if not member.flags}, "it takes UTF-8 of DOS for CP437"
