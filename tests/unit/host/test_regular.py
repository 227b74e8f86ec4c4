"""Files that have no end, and files of which `stat` says nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sophon_loader.host.regular import read_regular, read_to_end, seen

_SAYS_NOTHING = "/proc/sys/kernel/ostype"
"""A file of 6 bytes that has 0 by its `stat`, as those of some mounts have."""


@pytest.mark.parametrize("nbytes", [0, 1, 70_000, 300_000])
def test_a_file_is_read_whole(tmp_path: Path, nbytes: int) -> None:
    data = os.urandom(nbytes)
    (tmp_path / "x").write_bytes(data)
    path = str(tmp_path / "x")
    assert read_regular(path) == data and seen(path).nbytes == nbytes
    for told in (0, 1, 2 * nbytes):
        descriptor = os.open(path, os.O_RDONLY)
        assert read_to_end(descriptor, told) == data
        os.close(descriptor)


def test_no_more_is_read_than_is_of_use(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(1_000_000))
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    assert 100 < len(read_to_end(descriptor, 0, at_most=100)) < 200_000
    os.close(descriptor)


@pytest.mark.skipif(not os.path.exists(_SAYS_NOTHING), reason="no /proc")
def test_a_file_of_which_stat_says_nothing() -> None:
    assert os.stat(_SAYS_NOTHING).st_size == 0
    assert read_regular(_SAYS_NOTHING) == b"Linux\n" and seen(_SAYS_NOTHING).nbytes == 6


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, _socket, _device], ids=lambda make: make.__name__.strip("_"))
def test_what_has_no_end_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    before = os.listdir("/dev/fd")
    for call in (read_regular, seen):
        with pytest.raises(OSError, match="x") as caught:
            call(str(tmp_path / "x"))
        assert isinstance(caught.value, IsADirectoryError) == (make is os.mkdir)
    assert os.listdir("/dev/fd") == before


def test_a_file_that_takes_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    path, other = tmp_path / "x", tmp_path / "y"
    path.write_bytes(b"one")
    other.write_bytes(b"two")
    before = seen(str(path))
    assert seen(str(path)) == before
    os.replace(other, path)
    assert seen(str(path)) != before and seen(str(path)).nbytes == before.nbytes
