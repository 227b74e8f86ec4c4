"""Hostile and damaged archives are refused in words, in bounded time and memory."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from storage_agent.stores.archives import index_child
from storage_agent.stores.archives.members import ArchiveRefused, Members
from tests.support.agents import until
from tests.unit.agent.stores.archives.made_archives import Opened, refused, tar_of, zip_of

# --- hostile and damaged --------------------------------------------------------------------------------------


def _header(name: str = "x.jpg", **fields: Any) -> bytes:
    made = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(made, field, value)
    return made.tobuf(tarfile.GNU_FORMAT)


def _signed(header: bytes) -> bytes:
    """With the checksum that it should have."""
    total = sum(header) - sum(header[148:156]) + 8 * 32
    return header[:148] + b"%06o\0 " % total + header[156:]


def _sized(size: bytes, header: bytes) -> bytes:
    return _signed(header[:124] + size + header[136:])


PAX_LOOP = b"".join(_header(type=tarfile.XHDTYPE, size=0) for _ in range(3000))
GOOD = _header("a.jpg", size=1) + b"1".ljust(512, b"\0")
HOSTILE = {
    "beyond the end": _header(size=1 << 20) + bytes(1024),
    "2^63": _sized(b"\x80" + (1 << 63).to_bytes(11, "big"), _header()) + bytes(1024),
    "2^63 and more": GOOD + _sized(b"\x80" + (1 << 63).to_bytes(11, "big"), _header()) + GOOD,
    "2^90": _sized(b"\x80\x7f" + 10 * b"\xff", _header()) + bytes(1024),
    "negative": GOOD + _sized(b"\xff" * 10 + b"\xfb\xff", _header()) + GOOD,
    "negative in pax": GOOD + _header(type=tarfile.XHDTYPE, size=13) + b"13 size=-512\n".ljust(512, b"\0") + GOOD,
    "a long name that is not there": _header(type=tarfile.GNUTYPE_LONGNAME, size=1 << 33) + bytes(2048),
    "headers of headers": PAX_LOOP + GOOD,
    "two archives in one": (GOOD + bytes(1024)).ljust(10240, b"\0") + GOOD + bytes(1024),
    "a cut header": GOOD + GOOD[:300],
    "a damaged header": GOOD + b"?" * 512 + GOOD,
    "a changed header": GOOD + GOOD[:100] + b"?" + GOOD[101:] + GOOD,
    "cut data": GOOD + _header("b.jpg", size=600) + bytes(512),
    "nothing at all": b"",
    "text": b"hello, world\n" * 100,
    "zeros": bytes(10240),
    "gzip": b"\x1f\x8b" + bytes(2000),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(2000),
    "a zip": b"PK\3\4" + bytes(2000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar(tmp_path: Path, opened: Opened, name: str) -> None:
    (tmp_path / "x.tar").write_bytes(HOSTILE[name])
    refused(opened, tmp_path / "x.tar", f"{tmp_path}/x.tar")
    assert not [*(tmp_path / "indexes").glob(".*")], "nothing is left behind"


def test_a_large_claim_takes_no_memory(tmp_path: Path, opened: Opened) -> None:
    """A header with a name of 4 GiB, all of which is there."""
    with open(tmp_path / "x.tar", "wb") as file:
        file.write(_header(type=tarfile.GNUTYPE_LONGNAME, size=1 << 32))
        file.truncate(1 << 33)
    refused(opened, tmp_path / "x.tar", "headers must have at most")


def _ends(path: Path, at: int, form: str, *values: int) -> Path:
    """A zip whose last record is changed."""
    zip_of(path, ("x.jpg", b"pixels"))
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.rindex(b"PK\5\6") + at, *values)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("at", "form", "value"), [
    (12, "<I", 1 << 31), (12, "<I", 10), (16, "<I", 1 << 31), (12, "<I", 0xFFFFFFFF), (0, "<I", 0),
])  # fmt: skip
def test_a_hostile_end_of_a_zip(tmp_path: Path, opened: Opened, at: int, form: str, value: int) -> None:
    refused(opened, _ends(tmp_path / "x.zip", at, form, value), f"{tmp_path}/x.zip")


@pytest.mark.parametrize(("at", "form", "value"), [
    (20, "<I", 1 << 30), (24, "<I", 1 << 30), (42, "<I", 1 << 30), (42, "<I", 1), (10, "<H", 99),
])  # fmt: skip
def test_a_hostile_member_of_a_zip(tmp_path: Path, opened: Opened, at: int, form: str, value: int) -> None:
    path = zip_of(tmp_path / "x.zip", ("x.jpg", b"pixels"))
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, data.index(b"PK\1\2") + at, value)
    path.write_bytes(data)
    refused(opened, path, f"{path}")


def test_more_members_than_there_is_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(file: IO[bytes], nbytes: int, seen: Callable[[int], None]) -> Members:
        bytearray(index_child.MAX_MEMORY_NBYTES)
        raise AssertionError("there must be a limit")

    monkeypatch.setitem(index_child.READERS, "tar", hungry)
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    part = index_child.ArchivePart(
        str(path), path.stat().st_size, path.stat().st_mtime_ns, str(tmp_path / "x.index"), True
    )
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ArchiveRefused, match=r"x\.tar needs more memory than there is to index it; make several of it"):
        index_child._carry_out(index_child.IndexTask("tar", [part], part.index))
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_a_table_where_pyarrow_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    part = index_child.ArchivePart(str(tmp_path / "x.parquet"), 0, 0, str(tmp_path / "i"), wanted=True)
    with pytest.raises(ArchiveRefused, match=r"needs the package pyarrow; .*'sophon_loader\[tables\]'"):
        index_child._carry_out(index_child.IndexTask("parquet", [part], part.index))


def test_a_set_where_pylance_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ArchiveRefused, match=r"x\.lance cannot .* needs .* pylance; .*'sophon_loader\[lance\]'"):
        index_child._read_lance({"lance": "/x.lance"}, index_child.Outcome())


def test_an_agent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with open(path, "wb") as file:
        file.write(GOOD * 60_000)
    command = [sys.executable, "-m", "storage_agent", "index", f"tar://{path}", "--index-folder", str(tmp_path / "i")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        (child,) = until(psutil.Process(process.pid).children, "it indexes")
    finally:
        process.kill()
        process.wait()
    child.wait(20)
    assert not [*(tmp_path / "i").glob("*.index")]
