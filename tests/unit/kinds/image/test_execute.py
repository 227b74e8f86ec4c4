"""A file opened as a deferred image, and its program run on it: refused before work wherever it does not suit."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image import execute as module
from sophon_loader.kinds.image.deferred import Deferred, open_deferred
from sophon_loader.kinds.image.execute import execute
from sophon_loader.programs.program import Limits, Program
from tests.support.picture_files import KINDS, file_of

FILE = file_of("jpeg 4:2:0")
PROGRAM = Program("image", "f", (75, 58, "RGB"), (("crop", 3, 4, 30, 40), ("transpose", 0), ("filter", "mode", 3)))


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def wanted() -> Image.Image:
    cropped = opened(FILE).crop((3, 4, 30, 40)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return cropped.filter(ImageFilter.ModeFilter(3))


@pytest.mark.parametrize("by", [str, Path, bytes])
def test_a_file_is_read_once_and_tells_its_program(tmp_path: Path, by: Any) -> None:
    path = tmp_path / "one.jpg"
    path.write_bytes(FILE)
    image = open_deferred(FILE if by is bytes else by(path))
    path.unlink()
    turned = image.crop((3, 4, 30, 40)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert isinstance(turned, Deferred) and turned.program("f") == replace(PROGRAM, steps=PROGRAM.steps[:2])
    assert "('crop', 3, 4, 30, 40)" in repr(turned.program())
    assert turned == opened(FILE).crop((3, 4, 30, 40)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)


@pytest.mark.parametrize(
    "number", [np.int64, np.uint8, np.float32, np.float64, np.float16], ids=lambda one: one.__name__
)
def test_numbers_of_numpy_are_recorded_as_python_s(number: Any) -> None:
    whole = number if issubclass(number, np.integer) else np.int32
    box = tuple(map(number, (1.3, 2, 30.7, 40)))

    def done(image: Image.Image) -> Image.Image:
        resized = image.resize((whole(20), whole(21)), 2, box).resize((whole(9), 8), np.int64(3))
        return resized.transpose(whole(1))

    image = done(open_deferred(FILE))
    assert isinstance(image, Deferred)
    numbers = [one for step in image.program().steps for one in step[1:] if one is not None]
    assert {type(one) for one in (*numbers, *numbers[3])} == {int, tuple, type(number(1).item())}
    assert image == done(opened(FILE))


def test_numbers_that_pillow_refuses_are_refused() -> None:
    """As strings and floats are for a size."""
    for size, box in (((np.float64(8), 9), None), (("8", 9), None), ((8, 9), ("1", 2, 30, 40))):
        for image in (open_deferred(FILE), opened(FILE)):
            with pytest.raises(TypeError):
                image.resize(size, 2, box)  # type: ignore[arg-type]


def test_what_no_program_knows_is_opened_by_pillow() -> None:
    data = file_of("png P")
    assert not isinstance(open_deferred(data), Deferred) and open_deferred(data) == opened(data)
    with pytest.raises(Image.UnidentifiedImageError):
        open_deferred(b"no picture")
    with pytest.raises(FileNotFoundError):
        open_deferred("there/is/none.jpg")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("jpeg 4")])
def test_an_opened_file_is_told_to_decode_smaller_as_pillow_s_is(kind: str) -> None:
    image, own = open_deferred(file_of(kind)), opened(file_of(kind))
    for one in (image, own):
        one.thumbnail((7, 7))
    assert isinstance(image, Deferred)
    with pytest.raises(ProgramRefused, match="the picture it was made for"):
        execute(image.program(), file_of(kind))  # no program says so, and no file is that small
    assert image == own.copy()


def test_a_program_runs_whole_and_cut() -> None:
    assert execute(PROGRAM, FILE) == wanted()
    assert execute(PROGRAM, FILE, stop="file") is FILE
    assert execute(PROGRAM, FILE, stop="decoded") == opened(FILE).copy()
    shrunk = execute(PROGRAM, FILE, stop="shrunk")
    assert shrunk == opened(FILE).crop((3, 4, 30, 40)) and execute(PROGRAM, shrunk, "shrunk") == wanted()


@pytest.mark.parametrize(
    ("changes", "data", "text"),
    [
        ({"kind": "sound"}, FILE, "of kind 'image'"),
        ({"steps": (("melt",),)}, FILE, "step 0 must be one of"),
        ({"made_for": (75, 59, "RGB")}, FILE, "made for, .*height=59.*height=58"),
        ({}, file_of("jpeg L"), "mode='RGB'.*mode='L'"),
        ({}, file_of("png P"), "a file that has no programs"),
        ({}, b"no picture", "cannot identify"),
    ],
    ids=["kind", "step", "size", "mode", "palette", "no picture"],
)
def test_what_does_not_suit_is_refused(changes: dict[str, Any], data: bytes, text: str) -> None:
    with pytest.raises(ProgramRefused, match=text):
        execute(replace(PROGRAM, **changes), data)


def test_too_much_is_refused_before_a_file_is_looked_at() -> None:
    for limits in (Limits(px=4349), Limits(work=9000), Limits(nbytes=20000)):
        with pytest.raises(ProgramRefused, match="stay within"):
            execute(PROGRAM, b"no picture", limits=limits)
    assert execute(PROGRAM, FILE, limits=Limits(px=4350)) == wanted()


def test_a_remainder_takes_only_what_its_prefix_makes() -> None:
    with pytest.raises(ProgramRefused, match=r"width=27, height=36.*width=36, height=27"):
        execute(PROGRAM, Image.new("RGB", (36, 27)), "shrunk")


def test_segments_are_given_in_order() -> None:
    for start, stop in (("shrunk", "decoded"), ("8-bit", "table"), ("anywhere", "8-bit")):
        with pytest.raises(ValueError, match="in order, got"):
            execute(PROGRAM, FILE, start, stop)


def test_a_pillow_that_does_otherwise_runs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "trusted", lambda: False)
    with pytest.raises(ProgramRefused, match="must do what programs say"):
        execute(PROGRAM, FILE)
