"""What stands at `PIL.Image.open` while a sample is made, and when it does not."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.kinds.image.opening import open_image
from sophon_loader.recording import opener as opener_module
from sophon_loader.recording.opener import Opener, can_defer
from sophon_loader.recording.picture_counts import DAMAGED, OURS, PILLOW, PictureCounts
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILE = file_of("jpeg 4:2:0", 120, 90)
PILLOWS = Image.open


def is_deferred(image: Image.Image) -> bool:
    """Whether it is; a file that Pillow keeps open is closed."""
    image.close()
    return isinstance(image, Deferred)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "x.jpg"
    found.write_bytes(FILE)
    return found


def test_it_stands_there_within_alone_and_defers(path: Path) -> None:
    with Opener().opening() as pictures:
        assert Image.open is not PILLOWS
        image = Image.open(path)
        assert isinstance(image, Deferred) and pictures.deferred == 1
    assert Image.open is PILLOWS
    with Image.open(path) as plain:
        assert np.array_equal(np.asarray(image), np.asarray(plain))


@pytest.mark.parametrize("way", ["path", "text", "file", "bytes in memory", "mode", "behind its beginning"])
def test_ways_of_opening(path: Path, way: str) -> None:
    counts = PictureCounts(workers=1)
    with path.open("rb") as file, Opener(counts.of(0)).opening():
        memory = io.BytesIO(FILE)
        memory.seek(7)
        given: dict[str, Any] = {"path": path, "text": str(path), "file": file, "behind its beginning": memory}
        more: dict[str, Any] = {"mode": "r"} if way == "mode" else {}
        image = Image.open(given.get(way, io.BytesIO(FILE)), **more)
        assert isinstance(image, Deferred) and not counts.found(), "nothing is decoded yet"
        found = image.resize((30, 20)).tobytes()
        assert found == PILLOWS(path).resize((30, 20)).tobytes()
    assert counts.found() == {(OURS,): 1}


def test_what_is_pillows_to_open(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = PictureCounts(workers=1)
    (path.parent / "palette.png").write_bytes(file_of("png P", 40, 30))
    with Opener(counts.of(0)).opening() as pictures:
        assert not is_deferred(Image.open(path, formats=["JPEG"]))
        assert not counts.found()
        assert not is_deferred(Image.open(os.fsencode(path)))
        assert not is_deferred(Image.open(path.parent / "palette.png"))
        assert counts.found() == {(PILLOW, "other JPEG"): 1, (PILLOW, "palette PNG"): 1}, (
            "what might have been deferred"
        )
        with pytest.raises(FileNotFoundError):
            Image.open(path.parent / "none.jpg")
        with pytest.raises(IsADirectoryError):
            Image.open(path.parent)
        monkeypatch.setattr(opener_module, "MAX_FILE_NBYTES", len(FILE) - 1)
        assert not is_deferred(Image.open(path)) and not is_deferred(Image.open(io.BytesIO(FILE)))
        assert pictures.deferred == 0 and not pictures.failed


def test_another_thread_has_pillows_own(path: Path) -> None:
    found = []
    with Opener().opening():
        thread = threading.Thread(target=lambda: found.append(is_deferred(Image.open(path))))
        thread.start()
        thread.join()
    assert found == [False]


def test_this_packages_own_code_has_pillows_own() -> None:
    with Opener().opening():
        assert not isinstance(open_image(FILE), Deferred)


def test_a_function_that_somebody_else_has_put_there_is_called_and_stays(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def cached(fp: Any, *rest: Any, **more: Any) -> Any:
        called.append(fp)
        return PILLOWS(fp, *rest, **more)

    monkeypatch.setattr(Image, "open", cached)
    with Opener().opening():
        assert not is_deferred(Image.open(path, formats=["JPEG"]))
    assert called == [path] and Image.open is cached
    with Opener().opening():
        Image.open = PILLOWS
        assert not is_deferred(Image.open(path))
    assert Image.open is PILLOWS and called == [path]


def test_pixels_that_cannot_be_made_are_noted_whoever_swallows_the_error(path: Path) -> None:
    (path.parent / "sound.jpg").write_bytes(FILE)
    path.write_bytes(FILE[: len(FILE) // 2])
    counts = PictureCounts(workers=1)
    with Opener(counts.of(0)).opening() as pictures:
        Image.open(path.parent / "sound.jpg").resize((8, 8)).tobytes()
        image = Image.open(path).convert("RGB")
        assert not pictures.failed
        with pytest.raises(OSError, match="truncated"):
            ImageOps.mirror(image).tobytes()
    assert pictures.failed
    assert counts.found()[OURS,] == 1
    pictures.left_to_pillow_again()
    assert (OURS,) not in counts.found() and counts.found()[PILLOW, DAMAGED] == 2


def test_threads_that_make_samples_at_a_time_leave_nothing_behind(path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def longer() -> None:
        with Opener().opening():
            begun.set()
            may_end.wait(10)

    with Opener().opening() as pictures:
        thread = threading.Thread(target=longer)
        thread.start()
        begun.wait(10)
        assert is_deferred(Image.open(path)) and pictures.deferred == 1
    assert not is_deferred(Image.open(path))
    may_end.set()
    thread.join()
    assert Image.open is PILLOWS
