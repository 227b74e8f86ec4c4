"""Archives: which a location names, which members are served, and their indexes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.errors import ConfigError, SampleMissing, SampleOutsideExport, SampleUnreadable
from storage_agent.host.agent_settings import AgentSettings
from storage_agent.stores import open_exports
from storage_agent.stores.archives import indexing
from storage_agent.stores.archives.archive_locations import containers_of
from storage_agent.stores.archives.index import BadIndex, Index
from tests.unit.agent.stores.archives.made_archives import Member, Opened, refused, tar_of, zip_of


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


@pytest.mark.parametrize(
    "command",
    [
        "tar --sparse --format=gnu", "tar --sparse --format=oldgnu", "tar --sparse --format=pax --sparse-version=0.0",
        "tar --sparse --format=pax --sparse-version=0.1", "tar --sparse --format=pax --sparse-version=1.0",
        "bsdtar --format=pax",
    ],
)  # fmt: skip
def test_a_sparse_picture(tmp_path: Path, opened: Opened, command: str) -> None:
    if shutil.which(command.partition(" ")[0]) is None:
        pytest.skip(f"{command.partition(' ')[0]} is not installed")
    for name in ("x.jpg", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
        os.truncate(tmp_path / name, 1 << 20)
    (tmp_path / "y.jpg").write_bytes(b"pixels")
    for name in ("x.jpg", "notes.txt"):
        subprocess.run([*command.split(), "-cf", "x.tar", name, "y.jpg"], cwd=tmp_path, check=True, timeout=30)
        if name == "x.jpg":
            refused(opened, tmp_path / "x.tar", "'x.jpg'", "sparse", "without --sparse", "--no-read-sparse")
    store = opened(tmp_path / "x.tar")
    assert store.read("y.jpg") == b"pixels" and store.size("notes.txt") == -1


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


def _damaged(path: Path, right: bytes, wrong: bytes) -> None:
    data = path.read_bytes()
    assert data.count(right) == 1
    path.write_bytes(data.replace(right, wrong))


@pytest.mark.parametrize("location", ["zip://{}/x.zip", "zip://{}/*.zip"])
def test_a_damaged_member_of_a_zip_file(tmp_path: Path, opened: Opened, location: str) -> None:
    path = zip_of(tmp_path / "x.zip", ("a/x.jpg", b"pixels"), ("a/y.jpg", b"others"), ("a/empty.jpg", b""))
    zip_of(tmp_path / "y.zip", ("a/z.jpg", b"more"))
    _damaged(path, b"pixels", b"pixel$")
    store = opened(location.format(tmp_path))
    expected, found = (f"{zlib.crc32(data):08x}" for data in (b"pixels", b"pixel$"))
    for _ in range(2):
        with pytest.raises(SampleUnreadable) as caught:
            store.read("a/x.jpg")
        assert str(caught.value) == (
            f"member must have the CRC-32 that its archive notes, {expected}, got {found} for 'a/x.jpg' of export 'd' "
            f"in {path}; the archive is damaged: test it (unzip -t), copy it again, and restart the agent"
        )
    assert [store.read(key) for key in ("a/y.jpg", "a/y.jpg", "a/empty.jpg")] == [b"others", b"others", b""]
    assert store.size("a/x.jpg") == 6


def test_a_member_whose_beginning_was_read_is_checked_when_it_is_read_whole(tmp_path: Path, opened: Opened) -> None:
    _damaged(zip_of(tmp_path / "x.zip", ("a/x.jpg", b"pixels")), b"pixels", b"pixel$")
    store = opened(tmp_path / "x.zip")
    assert store.begin("a/x.jpg", 5) == (b"pixel", 6), "of which alone the archive notes no CRC-32"
    for read in (store.read, lambda key: store.begin(key, 6)):
        with pytest.raises(SampleUnreadable, match="member must have the CRC-32"):
            read("a/x.jpg")


def test_a_damaged_link_of_a_zip_file(tmp_path: Path, opened: Opened) -> None:
    link = zipfile.ZipInfo("link.jpg")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(zip_of(tmp_path / "x.zip", ("a.jpg", b"1"), ("b.jpg", b"2")), "a") as made:
        made.writestr(link, "./a.jpg")
    assert opened(tmp_path / "x.zip").read("link.jpg") == b"1"
    _damaged(tmp_path / "x.zip", b"./a.jpg", b"./b.jpg")
    refused(opened, tmp_path / "x.zip", "'link.jpg'", "CRC-32", "unzip -t")


# --- indexes --------------------------------------------------------------------------------------------------


def test_an_archive_that_changes(tmp_path: Path, opened: Opened) -> None:
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    store = opened(path)
    path.write_bytes(path.read_bytes())
    with pytest.raises(SampleUnreadable, match=r"as they were when the agent started, got .*x\.tar, which has changed"):
        store.read("x.jpg")
    path.unlink()
    with pytest.raises(SampleUnreadable, match=r"x\.tar, which is gone, for .*; restart the agent"):
        store.read("x.jpg")


def test_a_changed_archive_is_indexed_anew_alone(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tar_of(tmp_path / f"{n}.tar", (f"c/{n}.jpg", b"1")) for n in range(3)]
    location = f"tar://{tmp_path}/*.tar"
    first = opened(location).describe()
    indexes = set((tmp_path / "indexes").iterdir())
    assert len(indexes) == 4
    monkeypatch.setattr("storage_agent.stores.archives.indexing._make", None)
    assert opened(location).describe() == first, "nothing is made again"
    monkeypatch.undo()
    tar_of(paths[1], ("c/1.jpg", b"22"))
    for index in indexes:
        os.utime(index, (0, 0))
    again = opened(location)
    assert again.describe() != first and again.read("c/1.jpg") == b"22" and again.read("c/2.jpg") == b"1"
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
    settings = AgentSettings(
        {"d": f"tar://{tmp_path}/*.tar"}, "tcp://127.0.0.1:0", workers=1, index_folder=tmp_path / "indexes"
    )
    exports = open_exports(settings)
    exports.check()
    tar_of(tmp_path / "-.tar", ("x.jpg", b"2"))
    found = exports.indexed()
    again = open_exports(AgentSettings({**settings.exports}, settings.bind, workers=1, indexed=found))
    assert again["d"].read("0.jpg") == b"1" and again.describe() == exports.describe()
    os.unlink(found["d"].index)
    assert again["d"].read("0.jpg") == b"1"
    with pytest.raises(SampleUnreadable, match="the index of export 'd' must be there"):
        open_exports(AgentSettings({**settings.exports}, settings.bind, workers=1, indexed=found))["d"].read("0.jpg")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_an_index_that_another_user_has_put_there_is_not_used(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.tar", ("x.jpg", b"1"))
    settings = AgentSettings({"d": f"tar://{path}"}, "tcp://127.0.0.1:0", workers=1, index_folder=tmp_path / "indexes")
    exports = open_exports(settings)
    exports.check()
    found = exports.indexed()
    os.chown(found["d"].index, 65534, 65534)
    worker = open_exports(AgentSettings({**settings.exports}, settings.bind, workers=1, indexed=found))["d"]
    with pytest.raises(SampleUnreadable, match=r"got none at .*index must belong to this user .* restart the agent"):
        worker.read("x.jpg")
    again = open_exports(settings)
    again.check()  # makes it anew
    assert again["d"].read("x.jpg") == worker.read("x.jpg") == b"1"


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


def test_flat_archives_are_folders_of_their_own(tmp_path: Path, opened: Opened) -> None:
    for folder in ("a", "b"):
        (tmp_path / "all" / folder).mkdir(parents=True)
        tar_of(tmp_path / "all" / folder / "0.tar", ("x.jpg", folder.encode()), ("x.cls", b"1"), ("d/y.jpg", b"y"))
    store = opened(f"tar://{tmp_path}/all/{{a,b}}/*.tar")
    assert store.read("a/0/x.jpg") == b"a" and store.read("b/0/x.jpg") == b"b" and store.size("b/0/x.cls") == 1
    assert [where for where, _, _ in store.walk("a")] == ["", "0", "0/d"]
    one = opened(f"tar://{tmp_path}/all/a/0.tar")
    assert one.read("x.jpg") == b"a"


def test_archives_whose_pictures_lie_in_folders_are_one_folder(tmp_path: Path, opened: Opened) -> None:
    for number in range(2):
        tar_of(tmp_path / f"{number}.tar", (f"c/{number}.jpg", b"x"), ("notes.txt", b"top"))
    store = opened(f"tar://{tmp_path}/*.tar")
    assert store.read("c/0.jpg") == store.read("c/1.jpg") == b"x" and store.read("notes.txt") == b"top"


def test_a_name_that_gets_too_long_below_its_archives(tmp_path: Path, opened: Opened) -> None:
    long = "n/" + "a" * 4094
    for number in range(2):
        tar_of(tmp_path / f"{number}.tar", ("x.jpg", b"x"), (long, b"x"))
    store = opened(f"tar://{tmp_path}/*.tar")
    assert store.read("0/x.jpg") == b"x"
    assert [folders for _, folders, _ in store.walk("0")] == [[]]


def _of_two_kinds(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [one.__dict__["details"] for one in caplog.records if one.message == "archives of two kinds"]


def test_one_picture_outside_of_folders_renames_no_other(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        stray = [("preview.jpg", b"p")] if number else []
        tar_of(tmp_path / f"{number}.tar", (f"cat/{number}.jpg", b"x"), (f"dog/{number}.jpg", b"x"), *stray)
    for _ in range(2):  # the second takes the index of the first
        store = opened(f"tar://{tmp_path}/*.tar")
        assert next(store.walk("")) == ("", ["cat", "dog"], ["preview.jpg"]) and store.read("preview.jpg") == b"p"
    told, again = _of_two_kinds(caplog)
    assert told == again and told["first"] == "preview.jpg"
    assert (told["pictures_outside_of_folders"], told["pictures_in_folders"]) == (1, 4)
    tar_of(tmp_path / "0.tar", ("cat/0.jpg", b"x"), ("dog/0.jpg", b"x"), ("preview.jpg", b"q"))
    refused(opened, f"tar://{tmp_path}/*.tar", "'preview.jpg'", "1.tar, outside of all folders); export these archives")


def test_one_picture_in_a_folder_leaves_flat_archives_flat(
    tmp_path: Path, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        odd = [("d/y.jpg", b"y")] if number else []
        tar_of(tmp_path / f"{number}.tar", ("0.jpg", b"x"), ("1.jpg", b"x"), *odd)
    assert opened(f"tar://{tmp_path}/*.tar").read("1/d/y.jpg") == b"y"
    (told,) = _of_two_kinds(caplog)
    assert told["first"] == "d/y.jpg" and told["served_as"] == "a folder per archive"


def test_an_archive_without_a_suffix_renames_no_other(tmp_path: Path, opened: Opened) -> None:
    for name in ("a", "a.tar", "b.tar"):
        tar_of(tmp_path / name, ("x.jpg", name.encode()))
    store = opened(f"tar://{tmp_path}/*")
    assert [store.read(f"{folder}/x.jpg") for folder in ("a", "a.tar", "b")] == [b"a", b"a.tar", b"b.tar"]
