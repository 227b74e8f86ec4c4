"""A file that is kept while a process lives: its newest text, its owner, and what goes wrong (see also the agent's)."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sophon_loader.host.kept_file import KeptFile
from tests.support.agents import until


def kept_in(folder: Path, told: list[str], text: str = "one\n") -> KeptFile:
    def tell(reason: str, took_s: float) -> None:
        assert took_s >= 0
        told.append(reason)

    return KeptFile(folder / "some-file.json", text, prefix="some-", every_s=0.02, told=tell, thread="keeper")


def test_the_newest_text_is_written_and_the_file_goes_with_it(tmp_path: Path) -> None:
    told: list[str] = []
    kept = kept_in(tmp_path, told)
    kept.start()
    until(lambda: kept.path.exists() and kept.path.read_text() == "one\n", "the first is there")
    kept.text = "another\n"
    until(lambda: kept.path.read_text() == "another\n", "the newest is there")
    kept.close(5.0)
    kept.close(5.0)
    assert os.listdir(tmp_path) == [] and set(told) == {""} and kept.writing_s == 0.0


def test_each_failure_is_told_and_does_not_end_it(tmp_path: Path) -> None:
    told: list[str] = []
    kept = kept_in(tmp_path / "none", told)
    kept.start()
    until(lambda: len(told) > 2, "it is tried again and again")
    assert set(told) == {"No such file or directory"}
    (tmp_path / "none").mkdir()
    until(kept.path.exists, "it is written when it can be")
    kept.close(5.0)
    assert os.listdir(tmp_path / "none") == []


def test_another_s_file_of_the_same_name_stays(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, [])
    kept._every_s = 60.0
    kept.start()
    until(kept.path.exists, "it is there")
    kept.path.write_text("of another\n")
    kept.close(5.0)
    assert kept.path.read_text() == "of another\n"


def _big(path: Path) -> None:
    path.touch()
    os.truncate(path, 64 << 20)


def _link(path: Path) -> None:
    outside = path.parent.parent / "outside"
    _big(outside)
    path.symlink_to(outside)


def _link_to_the_same(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text("one\n")
    path.symlink_to(outside)


def _not_ascii(path: Path) -> None:
    path.write_bytes(b"\xe9\n")


@pytest.mark.parametrize("make", [_big, _link, _link_to_the_same, _not_ascii, os.mkfifo, os.mkdir])
def test_whatever_lies_in_its_place_is_not_read_whole_and_stays(
    tmp_path: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may write to the folder."""
    (tmp_path / "shared").mkdir()
    kept = kept_in(tmp_path / "shared", [])
    kept._every_s = 60.0
    kept.start()
    until(lambda: kept.path.exists() and not kept.writing_s, "it is there")
    kept.path.unlink()
    make(kept.path)
    real, asked = os.read, list[int]()

    def read(descriptor: int, nbytes: int) -> bytes:
        asked.append(nbytes)
        return real(descriptor, nbytes)

    monkeypatch.setattr("os.read", read)
    tracemalloc.start()
    try:
        kept.close(5.0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert not kept._thread.is_alive(), "nobody is waited for"
    assert most < 1 << 20 and sum(asked) < 1 << 17 and os.path.lexists(kept.path)


def test_a_forked_copy_neither_writes_nor_removes(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, [])
    kept.start()
    until(kept.path.exists, "it is there")
    child = os.fork()
    if not child:
        try:
            own = kept.is_own
            kept.close(5.0)
            os._exit(7 if kept.path.exists() and not own else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert kept.path.exists() and kept.is_own
    kept.close(5.0)
    assert os.listdir(tmp_path) == []
