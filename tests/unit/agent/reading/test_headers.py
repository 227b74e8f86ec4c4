"""A header is told from the beginning of a file where that holds it, and is always that of the whole file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from sophon_loader.errors import SampleUnreadable
from sophon_loader.kinds.image.header import header_of, pack
from storage_agent.reading import headers
from storage_agent.reading.headers import header_at, headers_at
from storage_agent.stores.folder import Folder
from tests.support.picture_files import KINDS, SOUND, file_of

LIMIT = 1 << 20
READ_HERE = ("jpeg", "png", "webp", "gif")


class _Watched(Folder):
    """A folder that notes which files are read whole, and which are expected."""

    def __init__(self, root: Path) -> None:
        super().__init__("d", str(root), LIMIT)
        self.whole: list[str] = []
        self.expected: list[tuple[str, int | None]] = []

    def expect(self, keys: Sequence[str], nbytes: int | None = None) -> None:
        self.expected += [(key, nbytes) for key in keys]

    def read(self, key: str) -> bytes:
        self.whole.append(key)
        return super().read(key)


@pytest.fixture
def store(tmp_path: Path) -> _Watched:
    return _Watched(tmp_path)


def _packed(data: bytes) -> bytes:
    header = header_of(data)
    return b"" if header is None else pack(header)


@pytest.mark.parametrize("beginning_nbytes", [12, 40, 200, 700, 64 << 10])
def test_it_is_that_of_the_whole_file_however_little_is_read_first(
    store: _Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beginning_nbytes: int
) -> None:
    monkeypatch.setattr(headers, "BEGINNING_NBYTES", beginning_nbytes)
    for kind in KINDS:
        (tmp_path / "x").write_bytes(data := file_of(kind))
        assert header_at(store, "x") == (len(data), _packed(data)), kind
    assert sum(_packed(file_of(kind)) != b"" for kind in SOUND if kind.startswith(READ_HERE)) > 20


@pytest.mark.parametrize(("data", "is_read"), [
    (file_of("jpeg 4:2:0")[:2] + b"\xff\xe2\xff\xff" + bytes(0xFFFD) + file_of("jpeg 4:2:0")[2:], True),
    (file_of("gif", 900, 700), True),
    (file_of("jpeg 4:4:4", 900, 700), False),
    (b"RIFF" + bytes(4) + b"AVI " + bytes(80 << 10), False),
    (b"a text " * (20 << 10), False),
], ids=["jpeg, profile", "gif", "jpeg", "film", "text"])  # fmt: skip
def test_only_a_picture_whose_header_goes_on_is_read_whole(
    store: _Watched, tmp_path: Path, data: bytes, is_read: bool
) -> None:
    assert len(data) > headers.BEGINNING_NBYTES
    (tmp_path / "x").write_bytes(data)
    assert header_at(store, "x") == (len(data), _packed(data))
    assert store.whole == ["x"] * is_read


def test_a_store_knows_of_some_files_ahead_and_of_all_once(store: _Watched) -> None:
    keys = [f"{n}" for n in range(150)]
    ahead = [len(store.expected) - done for done, _ in enumerate(headers_at(store, keys))]
    assert store.expected == [(key, headers.BEGINNING_NBYTES) for key in keys]
    assert max(ahead) == headers._AHEAD < len(keys) and min(ahead) >= 1


def test_no_file_no_header(store: _Watched, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/etc/hostname")
    (tmp_path / "large").write_bytes(file_of("png RGB") + bytes(LIMIT))
    told = [header_at(store, key) for key in ("none", "pipe", "out", "../x", "large")]
    assert told == [(-1, b""), (-1, b""), (-2, b""), (-2, b""), ((tmp_path / "large").stat().st_size, b"")]


def test_a_file_that_fails_further_on(store: _Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(key: str) -> bytes:
        raise SampleUnreadable("file must be readable")

    (tmp_path / "x").write_bytes(data := file_of("gif", 900, 700))
    monkeypatch.setattr(store, "read", broken)
    assert header_at(store, "x") == (len(data), b"")
