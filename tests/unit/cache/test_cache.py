"""Files that are kept on this host: real files, and whatever may become of them."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader.cache.cache import Cache, own_folder
from sophon_loader.cache.segment import FileVersion, Segment
from tests.support.warm import Forked, run_forked

OLD_NS = 10**18
MB = 10**6


def version(nbytes: int, changed_ns: int = OLD_NS) -> FileVersion:
    return FileVersion(nbytes, OLD_NS, changed_ns)


def content(number: int, nbytes: int = 20_000) -> bytes:
    return random.Random(number).randbytes(nbytes)


def kept(cache: Cache, numbers: range, nbytes: int = 20_000) -> int:
    """How many are there; each is as it was written, or is not there."""
    found = [cache.get(str(number), version(nbytes)) for number in numbers]
    for number, data in zip(numbers, found, strict=True):
        assert data is None or data == content(number, nbytes), number
    return sum(data is not None for data in found)


def fill(cache: Cache, numbers: range, nbytes: int = 20_000) -> int:
    return sum(cache.put(str(number), version(nbytes), content(number, nbytes)) for number in numbers)


def test_what_is_kept_is_found_by_another_process_and_after_a_restart(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "new"), 100 * MB)
    assert cache.why_not == ""
    assert fill(cache, range(100)) == 100
    assert kept(cache, range(100)) == 100
    assert all(cache.has(str(number)) for number in range(100))
    cache.close()
    text = f"""
from tests.unit.cache.test_cache import *
assert kept(Cache({str(tmp_path / "new")!r}, 100 * MB), range(100)) == 100
"""
    run_forked([sys.executable, "-c", text], timeout=60).check_returncode()
    assert os.stat(cache.folder).st_mode & 0o777 == 0o700


def test_another_version_is_not_found_and_takes_the_place(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 100 * MB)
    assert cache.put("a", version(3), b"old")
    assert cache.get("a", version(3, OLD_NS + 1)) is None
    assert cache.put("a", version(3, OLD_NS + 1), b"new")
    assert cache.get("a", version(3, OLD_NS + 1)) == b"new"
    assert cache.get("a", version(3)) is None


def test_what_is_there_is_not_written_again(tmp_path: Path) -> None:
    caches = [Cache(str(tmp_path), 100 * MB) for _ in range(2)]
    assert all(fill(cache, range(20)) == 20 for cache in caches)
    assert sum(one.stat().st_size for one in Path(caches[0].folder).glob("*.data")) < 100 * MB
    ends = [Segment(caches[0].folder, number)._end() for number in range(8)]
    assert sum(ends) == 20 * 20_000 + 8 * 4096


@pytest.mark.parametrize("changed", ["modified", "changed"])
def test_what_was_changed_just_now_is_not_kept(tmp_path: Path, changed: str) -> None:
    cache, now_ns = Cache(str(tmp_path), 100 * MB), time.time_ns()
    young = FileVersion(3, now_ns, OLD_NS) if changed == "modified" else FileVersion(3, OLD_NS, now_ns)
    assert not cache.put("a", young, b"abc", 2.0)
    assert not cache.put("b", version(4), b"abc")  # nor what was changed while it was read
    assert not cache.put("c", version(0), b"")


def test_a_share_of_the_keys_is_kept_and_all_processes_agree(tmp_path: Path) -> None:
    caches = [Cache(str(tmp_path), 1000 * 20_000, 4000 * 20_000) for _ in range(2)]
    admitted = [[key for key in map(str, range(4000)) if cache.admits(key)] for cache in caches]
    assert admitted[0] == admitted[1]
    assert len(admitted[0]) / 4000 == pytest.approx(0.97 / 4, abs=0.03)
    # There is room for nearly all of them: the eight parts of the keys are not of quite the same size.
    assert len(admitted[0]) * 0.85 < fill(caches[0], range(4000)) <= len(admitted[0])


@pytest.mark.parametrize("room_nbytes", [1, 100_000, 300_000, 2 * MB])
def test_no_more_than_the_room_is_taken(tmp_path: Path, room_nbytes: int) -> None:
    cache = Cache(str(tmp_path), room_nbytes)
    count = fill(cache, range(200), 2_000)
    taken = sum(Segment(cache.folder, number).nbytes for number in range(8))
    assert taken <= max(room_nbytes, 8 * 4096)
    assert count >= {1: 0, 100_000: 0, 300_000: 30, 2 * MB: 200}[room_nbytes]
    assert kept(cache, range(200), 2_000) == count


def test_many_small_files_are_found(tmp_path: Path) -> None:
    segment = Segment(str(tmp_path), 0)
    digests = [random.Random(number).randbytes(16) for number in range(20_000)]
    for digest in digests:
        assert segment.put(digest, version(16), digest, 100 * MB)
    assert len(list(segment.entries())) == len(digests)
    for digest in digests:
        entry = segment.find(digest)
        assert entry is not None and segment.data(entry) == digest


@pytest.mark.parametrize("what", ["data", "table"])
def test_flipped_bits_are_never_read(tmp_path: Path, what: str) -> None:
    cache, draw = Cache(str(tmp_path), 10 * MB), random.Random(what)
    fill(cache, range(60), 500)
    for _ in range(40):
        for path in Path(cache.folder).glob(f"*.{what}"):
            with path.open("r+b") as file:
                used = 4096 + 60 * 500 // 4 if what == "data" else path.stat().st_size
                at = draw.randrange(min(path.stat().st_size, used))
                file.seek(at)
                byte = file.read(1)[0] ^ (1 << draw.randrange(8))
                file.seek(at)
                file.write(bytes([byte]))
        kept(cache, range(60), 500)
    assert fill(Cache(str(tmp_path), 10 * MB), range(60), 500) > 50  # and is written again
    assert kept(cache, range(60), 500) > 50


@pytest.mark.parametrize("what", ["data", "table"])
@pytest.mark.parametrize("left", [0, 1, 24, 4096, 4500, 6000])
def test_what_is_cut_off_is_not_read_and_is_written_again(tmp_path: Path, what: str, left: int) -> None:
    cache = Cache(str(tmp_path), 10 * MB)
    fill(cache, range(60), 500)
    for path in Path(cache.folder).glob(f"*.{what}"):
        os.truncate(path, left)
    assert kept(cache, range(60), 500) < 60
    assert fill(cache, range(60), 500) == 60
    assert kept(cache, range(60), 500) == 60


def test_segments_of_others_are_not_read(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 10 * MB)
    fill(cache, range(60), 500)
    files = sorted(Path(cache.folder).glob("*.data"))
    files[0].rename(tmp_path / "x")
    files[1].rename(files[0])
    (tmp_path / "x").rename(files[1])
    for path in files[2:4]:
        path.write_bytes(random.Random(1).randbytes(20_000))
    assert kept(Cache(str(tmp_path), 10 * MB), range(60), 500) < 60


def test_a_removed_folder_and_one_for_reading_only_stop_growth(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 10 * MB)
    fill(cache, range(20))
    shutil.rmtree(cache.folder)
    fill(cache, range(1000))
    kept(cache, range(1000))
    other = Cache(str(tmp_path / "other"), 10 * MB)
    shutil.rmtree(other.folder)
    assert fill(other, range(10)) == 0
    assert kept(other, range(10)) == 0
    assert not other.has("1")


def test_a_folder_that_is_not_this_user_s_alone_is_not_used(tmp_path: Path) -> None:
    folder = Path(own_folder(str(tmp_path)))
    folder.mkdir(mode=0o755)
    cache = Cache(str(tmp_path), 10 * MB)
    assert "this user alone" in cache.why_not
    assert fill(cache, range(5)) == 0
    folder.rmdir()
    folder.symlink_to(tmp_path)
    assert "this user alone" in Cache(str(tmp_path), 10 * MB).why_not
    assert "cannot be made" in Cache(str(tmp_path / "no" / "such"), 10 * MB).why_not


def exchange(folder: str) -> None:
    """Another user moves a cache away and puts one of theirs there, which looks alike."""
    shutil.copytree(folder, f"{folder}.theirs")
    os.rename(folder, f"{folder}.moved")
    os.rename(f"{folder}.theirs", folder)
    for path in (Path(folder), *Path(folder).iterdir()):
        os.chown(path, 65534, 65534)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_that_another_user_has_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 10 * MB)
    assert fill(cache, range(20)) == 20
    cache.close()
    exchange(cache.folder)
    before = [(path, path.read_bytes()) for path in sorted(Path(cache.folder).iterdir())]
    assert kept(cache, range(20)) == 0 and fill(cache, range(20, 40)) == 0
    assert [(path, path.read_bytes()) for path in sorted(Path(cache.folder).iterdir())] == before
    assert cache.reads.exchanged and cache.reads.left_alone
    assert "this user alone" in Cache(str(tmp_path), 10 * MB).why_not


@pytest.mark.parametrize("changed", ["folder", "file"])
def test_a_cache_to_which_others_may_write_is_left_alone(tmp_path: Path, changed: str) -> None:
    cache = Cache(str(tmp_path), 10 * MB)
    assert fill(cache, range(20)) == 20
    cache.close()
    for path in [cache.folder] if changed == "folder" else Path(cache.folder).iterdir():
        os.chmod(path, 0o777)
    assert kept(cache, range(20)) == 0 and cache.reads.exchanged


def fill_sent(cache: Cache, numbers: range) -> int:
    """As `fill`, with files from an agent."""
    return sum(cache.put(str(one), version(20_000), content(one), sent=True) for one in numbers)


def test_what_agents_have_sent_is_not_found_once_it_was_withdrawn(tmp_path: Path) -> None:
    cache, other = Cache(str(tmp_path), 10 * MB), Cache(str(tmp_path), 10 * MB)
    assert fill_sent(cache, range(20)) == 20 and fill(other, range(20, 40)) == 20 and kept(other, range(40)) == 40
    assert cache.withdraw_sent()
    for one in (cache, other, again := Cache(str(tmp_path), 10 * MB)):
        assert kept(one, range(20)) == 0 and kept(one, range(20, 40)) == 20, "what this host has read stays"
    # Jobs that go on may still be sent the same; one that begins has an agent that was mended, as far as anybody knows.
    assert fill_sent(cache, range(20)) == fill_sent(other, range(40, 60)) == 0
    assert fill_sent(again, range(20)) == 20 and kept(cache, range(20)) == 20
    assert sum(Segment(cache.folder, number)._end() for number in range(8)) == 40 * 20_000 + 8 * 4096
    assert fill(other, range(40, 60)) == 20
    assert again.withdraw_sent() and kept(other, range(60)) == 40


def test_a_withdrawal_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = Cache(str(tmp_path), 10 * MB)
    monkeypatch.setattr(os, "write", full)
    assert not cache.withdraw_sent()
    unused = Cache(str(tmp_path / "no" / "such"), 10 * MB)
    assert unused.withdraw_sent(), "nothing was kept there"


def test_a_disk_that_is_slow_keeps_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(str(tmp_path), 100 * MB)
    put = Segment.put

    def slow(*args: object) -> bool:
        time.sleep(0.1)
        return put(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "put", slow)
    began_s = time.monotonic()
    assert 5 <= fill(cache, range(1000), 100) <= 7
    assert time.monotonic() - began_s < 3


def writer(folder: Path, first: int) -> subprocess.Popen[bytes]:
    """A process that writes 200 files over and over, by turns in two versions."""
    text = f"""
import itertools
from tests.unit.cache.test_cache import *
cache = Cache({str(folder)!r}, 400 * MB)
data = [content({first} + number) for number in range(200)]
for number in itertools.cycle(range(200)):
    cache._saved_s = 1.0
    if number == 0:
        print("round", flush=True)
        shift = cache.get("{first}", version(20_000)) is not None
    cache.put(str({first} + number), version(20_000, OLD_NS - shift), data[number])
    time.sleep(0.0003)  # else all room is taken
"""
    return Forked([sys.executable, "-c", text], stdout=subprocess.PIPE)


def test_kill_in_the_middle_of_a_write_and_two_that_write(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path), 400 * MB)
    for _ in range(4):
        writers = [writer(tmp_path, first) for first in (0, 100)]
        try:
            for one in writers:
                assert one.stdout is not None
                assert one.stdout.readline() == b"round\n"
            end_s = time.monotonic() + random.uniform(0.01, 0.2)
            while time.monotonic() < end_s:
                kept(cache, range(0, 300, 7))
        finally:
            for one in writers:
                one.send_signal(signal.SIGKILL)
                one.wait(10)
                assert one.stdout is not None
                one.stdout.close()
        kept(cache, range(300))
    assert fill(Cache(str(tmp_path), 400 * MB), range(300)) > 290
    assert kept(cache, range(300)) > 290


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True)
    if done.returncode:
        pytest.skip("a small disk must be mounted, which this user may not")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_stops_growth_and_some_of_it_stays_free(small_disk: Path) -> None:
    cache = Cache(str(small_disk), 400 * MB)
    count = fill(cache, range(400))
    assert 100 < count < 200
    assert kept(cache, range(400)) == count
    disk = os.statvfs(small_disk)
    assert disk.f_bavail * disk.f_frsize >= 0.04 * disk.f_blocks * disk.f_frsize


def test_a_disk_that_others_fill_or_that_becomes_read_only(small_disk: Path) -> None:
    cache = Cache(str(small_disk), 400 * MB)
    assert fill(cache, range(20)) == 20
    with (small_disk / "rest").open("wb", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError:
            pass
    fill(cache, range(400))
    assert kept(cache, range(400)) >= 20
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    again = Cache(str(small_disk), 400 * MB)
    assert again.why_not == ""
    assert kept(again, range(400)) >= 20
    assert fill(again, range(400, 410)) == 0


def test_a_file_that_only_looks_changed_takes_no_new_place(tmp_path: Path) -> None:
    """chmod, chown and a new hard link give all files of a set another time of change."""
    cache = Cache(str(tmp_path), 10 * MB)
    for later in range(50):
        data = content(1)
        assert cache.put("a", version(len(data), OLD_NS + later), data)
        assert cache.get("a", version(len(data), OLD_NS + later)) == data
    assert sum(Segment(cache.folder, number)._end() for number in range(8)) < 8 * 4096 + 2 * 20_000
