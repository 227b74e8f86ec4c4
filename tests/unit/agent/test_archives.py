"""Archives: which a location names, which members are served, what is refused and in which words, and their indexes."""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from sophon_loader.errors import ConfigError, SampleMissing, SampleOutsideExport, SampleUnreadable
from storage_agent.settings import Settings
from storage_agent.stores import index_child, indexing, open_exports
from storage_agent.stores.archive import Archive
from storage_agent.stores.index import BadIndex, Index
from storage_agent.stores.locations import containers_of
from storage_agent.stores.members import Members, Refused
from tests.support.agents import until

LIMIT = 1000
Member = tuple[str, bytes | dict[str, Any]]
"""A name, and its bytes or what else stands in its header."""


def tar_of(path: Path, *members: Member, form: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, what in members:
            header = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                header.size = len(what)
                tar.addfile(header, io.BytesIO(what))
            else:
                for field, value in what.items():
                    setattr(header, field, value)
                tar.addfile(header)
    return path


def zip_of(path: Path, *members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as made:
        for name, data in members:
            made.writestr(name, data)
    return path


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[Path | str], Archive]:
    def make(location: Path | str) -> Archive:
        if isinstance(location, Path):
            location = f"{location.suffix[1:]}://{location}"
        store = Archive("d", location, LIMIT, index_folder=tmp_path / "indexes")
        store.check()
        return store

    return make


Opened = Callable[[Path | str], Archive]


def refused(opened: Opened, location: Path | str, *said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(location)
    text = str(caught.value)
    assert text.startswith("export 'd'") and all(one in text for one in said), text
    assert len(text) < 1000


def _left_out(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [one.__dict__["details"] for one in caplog.records if one.message == "members left out"]


# --- locations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("x-{000..002}.tar", ["x-000.tar", "x-001.tar", "x-002.tar"]),
        ("x-{8..10}.tar", ["x-8.tar", "x-9.tar", "x-10.tar"]),
        ("{a,b}-{0..1}.tar", ["a-0.tar", "a-1.tar", "b-0.tar", "b-1.tar"]),
        ("*.tar", ["a.tar", "b.tar"]),
        ("?[x].tar", ["?[x].tar"]),
        ("{0..1}/*.tar", ["0/x.tar", "1/x.tar", "1/y.tar"]),
        ("{odd,name.tar", ["{odd,name.tar"]),
        ("{0..1}.tar.d/a.tar", ["{0..1}.tar.d/a.tar"]),
    ],
)
def test_the_archives_of_a_location(tmp_path: Path, pattern: str, names: Sequence[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert containers_of("d", f"tar://{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in names]


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("tar://data/x.tar", r"must be tar:// and an absolute path, or one that begins with ./, .* tar:///data/x.tar"),
        ("tar://", "must be tar:// and an absolute path"),
        ("zip://x.zip", "write zip:///data/x.zip"),
        ("tar:///none/of/this.tar", "got /none/of/this.tar: No such file or directory"),
        ("tar:///none/{0..3}.tar", "got /none/0.tar: No such file"),
        ("tar:///none/*.tar", r"got none for 'tar:///none/\*.tar'; correct it, or mount"),
        ("tar:///none/{0..999999999999}.tar", "at most 100000 archives"),
        ("tar:///none/{0..999}{0..999}.tar", "at most 100000 archives"),
        ("tar:///data/x.tar.gz", r"not compressed, .*; unpack it: gunzip /data/x.tar.gz"),
        ("tar:///data/{0..1}.tar.zst", "unpack it: zstd -d /data/0.tar.zst"),
        ("tar:///data/x.TGZ", "unpack it: gunzip"),
        ("tar:///tmp", "must be a tar file, got /tmp, which is none; write its path without tar://"),
        ("tar:///dev/null", "must be a tar file, got /dev/null"),
    ],
)
def test_a_location_that_cannot_be_served(location: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        containers_of("d", location)


# --- several archives -----------------------------------------------------------------------------------------


def test_several_archives_are_one_export(tmp_path: Path, opened: Opened) -> None:
    tar_of(tmp_path / "0.tar", ("a/1.jpg", b"1"), ("b/2.jpg", b"22"), ("a", {"type": tarfile.DIRTYPE}))
    tar_of(tmp_path / "1.tar", ("a/3.jpg", b"333"), ("c/4.jpg", b"4"), ("a", {"type": tarfile.DIRTYPE}))
    store = opened(f"tar://{tmp_path}/{{0..1}}.tar")
    assert [store.read(key) for key in ("a/1.jpg", "b/2.jpg", "a/3.jpg", "c/4.jpg")] == [b"1", b"22", b"333", b"4"]
    assert sorted(next(store.walk(""))[1]) == ["a", "b", "c"] and sorted(next(store.walk("a"))[2]) == ["1.jpg", "3.jpg"]


def test_a_picture_in_two_archives(tmp_path: Path, opened: Opened) -> None:
    for name in "01":
        tar_of(tmp_path / f"{name}.tar", ("a/x.jpg", b"1"), ("notes.txt", b"1"))
    refused(opened, f"tar://{tmp_path}/*.tar", "'a/x.jpg'", f"{tmp_path}/0.tar and {tmp_path}/1.tar", "apart")


def test_other_files_in_two_archives(tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    for name in "01":
        tar_of(tmp_path / f"{name}.tar", (f"a/{name}.jpg", b"1"), ("notes.txt", name.encode()))
    store = opened(f"tar://{tmp_path}/*.tar")
    assert store.read("notes.txt") == b"0"
    (told,) = _left_out(caplog)
    assert told["count"] == 1 and told["first"] == "notes.txt" and f"{tmp_path}/0.tar" in told["reason"]


# --- members --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_last_of_a_name_counts(tmp_path: Path, opened: Opened, form: int) -> None:
    path = tar_of(tmp_path / "x.tar", ("a.jpg", b"old"), ("b.jpg", {"type": tarfile.LNKTYPE, "linkname": "a.jpg"}),
                  ("./a.jpg", b"new"), form=form)  # fmt: skip
    store = opened(path)
    assert store.read("a.jpg") == b"new" and store.read("b.jpg") == b"old"


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.jpg", "a/../x.jpg", "..", "a/.."])
@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_names_that_leave(tmp_path: Path, opened: Opened, make: Any, name: str) -> None:
    path = make(tmp_path / f"x.{make.__name__[:3]}", (name, b"1"))
    refused(opened, path, str(path), repr(name), "relative names without '..'", "write it anew")


def test_links_that_lead_through_one_another(tmp_path: Path, opened: Opened) -> None:
    link = tarfile.SYMTYPE
    chain: list[Member] = [(f"l{n}", {"type": link, "linkname": f"l{n + 1}"}) for n in range(60)]
    loops: list[Member] = [("p", {"type": link, "linkname": "q/x"}), ("q", {"type": link, "linkname": "p/x"})]
    fans: list[Member] = [("f/up", {"type": link, "linkname": "../f/up/up"})]
    store = opened(tar_of(tmp_path / "x.tar", *chain, ("l60", b"end"), *loops, *fans, ("x.jpg", b"1")))
    assert store.read("l25") == b"end"
    for key in ("l0", "p", "q/x", "f/up", "f/up/up/up"):
        with pytest.raises(SampleUnreadable, match="Too many levels of symbolic links"):
            store.read(key)
        assert store.size(key) == -1
    assert len(list(store.walk(""))) < 10


@pytest.mark.parametrize("target", ["/etc/passwd", "../x.jpg", "a/../../x.jpg", "../data/x.jpg"])
def test_a_link_that_leaves(tmp_path: Path, opened: Opened, target: str) -> None:
    link = {"type": tarfile.SYMTYPE, "linkname": target}
    store = opened(tar_of(tmp_path / "x.tar", ("x.jpg", b"1"), ("a/y.jpg", b"1"), ("out.jpg", link)))
    with pytest.raises(SampleOutsideExport, match="a link that leaves it"):
        store.read("out.jpg")
    assert store.size("out.jpg") == -2


def test_a_hard_link_to_nothing(tmp_path: Path, opened: Opened) -> None:
    link = {"type": tarfile.LNKTYPE, "linkname": "none.jpg"}
    refused(opened, tar_of(tmp_path / "x.tar", ("x.jpg", link)), "'x.jpg'", "hard links to files that")


def test_a_sparse_picture(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "x.jpg").write_bytes(b"")
    os.truncate(tmp_path / "x.jpg", 1 << 20)
    for name in ("gnu", "pax"):
        command = ["tar", "--sparse", f"--format={name}", "-cf", f"{name}.tar", "x.jpg"]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=30)
        refused(opened, tmp_path / f"{name}.tar", "'x.jpg'", "sparse", "without --sparse")


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compressed_picture(tmp_path: Path, opened: Opened, compression: int) -> None:
    path = zip_of(tmp_path / "x.zip", ("a/x.JPG", bytes(900)), compression=compression)
    refused(opened, path, f"{path} cannot be served", "'a/x.JPG'", "compressed", "zip -0")


def test_an_encrypted_picture(tmp_path: Path, opened: Opened) -> None:
    path = zip_of(tmp_path / "x.zip", ("x.jpg", b"1"))
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(data)
    refused(opened, path, "'x.jpg'", "encrypted", "without a password")


def test_other_compressed_members_are_left_out(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    path = zip_of(tmp_path / "x.zip", ("x.jpg", b"1"))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as more:
        more.writestr("notes.txt", bytes(900))
        more.writestr("more.csv", bytes(900))
    store = opened(path)
    assert store.read("x.jpg") == b"1"
    with pytest.raises(SampleMissing):
        store.read("notes.txt")
    assert _left_out(caplog) == [{"export": "d", "reason": "compressed", "count": 2, "first": "notes.txt"}]


def test_zip64(tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 10)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as made:
        for name in ("a.jpg", "b.jpg"):
            with made.open(name, "w", force_zip64=True) as file:
                file.write(100 * name.encode())
    monkeypatch.undo()
    assert b"PK\6\6" in path.read_bytes()
    store = opened(path)
    assert store.read("a.jpg") == 100 * b"a.jpg" and store.read("b.jpg") == 100 * b"b.jpg"


def test_a_zip_behind_other_bytes(tmp_path: Path, opened: Opened) -> None:
    """As what unpacks itself is."""
    path = zip_of(tmp_path / "y.zip", ("a.jpg", b"pixels"))
    (tmp_path / "x.zip").write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert opened(tmp_path / "x.zip").read("a.jpg") == b"pixels"


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
    part = index_child.Part(str(path), path.stat().st_size, path.stat().st_mtime_ns, str(tmp_path / "x.index"), True)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(Refused, match=r"x\.tar needs more memory than there is to index it; make several of it"):
        index_child._carry_out(index_child.Task("tar", [part], part.index), index_child.Outcome())
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


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


# --- indexes --------------------------------------------------------------------------------------------------


def test_an_archive_that_changes(tmp_path: Path, opened: Opened) -> None:
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    store = opened(path)
    path.write_bytes(path.read_bytes())
    with pytest.raises(SampleUnreadable, match=r"as they were when the agent started, got .*x\.tar, which has changed"):
        store.read("x.jpg")
    path.unlink()
    with pytest.raises(SampleUnreadable, match=r"x\.tar: No such file"):
        store.read("x.jpg")


def test_a_changed_archive_is_indexed_anew_alone(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tar_of(tmp_path / f"{n}.tar", (f"{n}.jpg", b"1")) for n in range(3)]
    location = f"tar://{tmp_path}/*.tar"
    first = opened(location).describe()
    indexes = set((tmp_path / "indexes").iterdir())
    assert len(indexes) == 4
    monkeypatch.setattr("storage_agent.stores.indexing._make", None)
    assert opened(location).describe() == first, "nothing is made again"
    monkeypatch.undo()
    tar_of(paths[1], ("1.jpg", b"22"))
    again = opened(location)
    assert again.describe() != first and again.read("1.jpg") == b"22" and again.read("2.jpg") == b"1"
    left = set((tmp_path / "indexes").iterdir())
    assert len(left) == 4 and len(left & indexes) == 2, "the old ones of what has changed are gone"


def test_the_index_is_private_and_small(tmp_path: Path, opened: Opened) -> None:
    names = [f"c{n % 7}/{n:06}.jpg" for n in range(1000)]
    opened(tar_of(tmp_path / "x.tar", *((name, b"") for name in names)))
    (index,) = (tmp_path / "indexes").iterdir()
    assert os.stat(tmp_path / "indexes").st_mode & 0o777 == 0o700 and os.stat(index).st_mode & 0o777 == 0o600
    assert os.stat(index).st_size < 24 * 1001 + sum(map(len, names)) + 100


@pytest.mark.parametrize("damage", [b"", b"x", bytes(5000)])
def test_a_damaged_index_is_made_again(tmp_path: Path, opened: Opened, damage: bytes) -> None:
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"pixels"))
    opened(path)
    (index,) = (tmp_path / "indexes").iterdir()
    index.write_bytes(damage)
    assert opened(path).read("x.jpg") == b"pixels"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    with pytest.raises(BadIndex, match="damaged"):
        Index(index).check()
    assert opened(path).read("x.jpg") == b"pixels"


def test_others_may_not_write_indexes(tmp_path: Path, opened: Opened) -> None:
    (tmp_path / "indexes").mkdir()
    (tmp_path / "indexes").chmod(0o777)
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    with pytest.raises(
        ConfigError, match="--index-folder must be a folder into which the agent's user alone may write"
    ):
        opened(path)
    shutil.rmtree(tmp_path / "indexes")
    (tmp_path / "indexes").touch()
    with pytest.raises(ConfigError, match="--index-folder must be a folder that the agent can make and write"):
        opened(path)


def test_workers_take_what_the_start_found(tmp_path: Path) -> None:
    """Also if another archive has come in the meantime."""
    tar_of(tmp_path / "0.tar", ("0.jpg", b"1"))
    settings = Settings(
        {"d": f"tar://{tmp_path}/*.tar"}, "tcp://127.0.0.1:0", workers=1, index_folder=tmp_path / "indexes"
    )
    exports = open_exports(settings)
    exports.check()
    tar_of(tmp_path / "-.tar", ("x.jpg", b"2"))
    found = exports.indexed()
    again = open_exports(Settings({**settings.exports}, settings.bind, workers=1, indexed=found))
    assert again["d"].read("0.jpg") == b"1" and again.describe() == exports.describe()
    os.unlink(found["d"].index)
    assert again["d"].read("0.jpg") == b"1"
    with pytest.raises(SampleUnreadable, match="the index of export 'd' must be there"):
        open_exports(Settings({**settings.exports}, settings.bind, workers=1, indexed=found))["d"].read("0.jpg")


def test_two_that_index_at_once(tmp_path: Path, opened: Opened) -> None:
    path = tar_of(tmp_path / "x.tar", *((f"{n}.jpg", b"1") for n in range(100)))
    threads = [threading.Thread(target=opened, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened(path).read("7.jpg") == b"1"


def test_the_usual_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert indexing.usual_index_folder() == tmp_path / "sophon" / "indexes"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert indexing.usual_index_folder() == tmp_path / "home/.cache/sophon/indexes"


def test_the_description_ends_in_the_digest(tmp_path: Path, opened: Opened) -> None:
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    assert re.fullmatch(rf"tar://{path} \(index [0-9a-f]{{32}}\)", opened(path).describe())
