"""The first steps of a program by C of our own: the pixels that Pillow gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sophon_loader.kinds.image.fused_picture import DecodeTally, Picture, begun
from sophon_loader.kinds.image.part import NotCut, Region, part_of
from sophon_loader.kinds.image.primitives import Shape, output, run
from sophon_loader.kinds.image.source import PictureFile, PixelsWanted, source_of
from sophon_loader.native import fused
from sophon_loader.programs.program import Step
from tests.support.drawn import examples
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(fused.DECODE not in fused.checked(), reason="our decoder cannot be used here")
OURS = ["jpeg 4:2:0", "jpeg 4:4:4", "jpeg L", "jpeg progressive"]


def counted(data: bytes) -> PictureFile:
    source = source_of(data)
    assert source is not None
    source.tally = DecodeTally()
    return source


@st.composite
def boxes(draw: st.DrawFn, shape: Shape, *, beyond: int) -> tuple[int, int, int, int]:
    """Boxes of a picture; some reach a few px beyond it."""
    least = draw(st.sampled_from([0, -beyond]))
    left, right = sorted(draw(st.lists(st.integers(least, shape.width - least), min_size=2, max_size=2, unique=True)))
    top, bottom = sorted(draw(st.lists(st.integers(least, shape.height - least), min_size=2, max_size=2, unique=True)))
    return left, top, right, bottom


@st.composite
def steps_for(draw: st.DrawFn, shape: Shape) -> list[Step]:
    """Up to seven steps, crops and turns of crops and turns among them."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(0, 7))):
        name = draw(st.sampled_from(["crop", "crop", "transpose", "transpose", "resize", "convert", "point"]))
        step: Step
        if name == "crop":
            step = ("crop", *draw(boxes(shape, beyond=5)))
        elif name == "transpose":
            step = ("transpose", draw(st.integers(0, 6)))
        elif name == "resize":
            box = draw(st.none() | boxes(shape, beyond=0))
            sides = st.integers(1, 60)
            step = (
                "resize",
                draw(sides),
                draw(sides),
                draw(st.integers(0, 5)),
                box,
                draw(st.sampled_from([None, 2.0])),
            )
        elif name == "convert":
            step = ("convert", draw(st.sampled_from(["RGB", "L"])))
        else:
            step = ("point", bytes(range(256))[::-1] * (1 if shape.mode == "L" else 3))
        made = output(step, shape)
        if made is not None and (name != "convert" or made.mode != shape.mode):
            steps.append(step)
            shape = made
    return steps


@examples(400)
@given(data=st.data())
def test_steps_give_what_they_give_by_pillow(data: st.DataObject) -> None:
    file = file_of(data.draw(st.sampled_from([*OURS, "jpeg CMYK", "png RGB", "png RGBA"])), 61, 47)
    shape = counted(file).shape
    steps = data.draw(steps_for(shape))
    found = begun(counted(file), steps)
    if found is None:
        return
    picture, done = found
    wanted = run(counted(file).whole(), steps[:done])
    assert picture.shape == (*wanted.size, wanted.mode)
    image = picture.image()
    assert image.tobytes() == wanted.tobytes() and (image.mode, image.size) == (wanted.mode, wanted.size)
    bands = len(wanted.getbands())
    table = np.arange(256 * bands, dtype=np.float32).reshape(bands, 256)
    out = np.empty((bands, wanted.height, wanted.width), np.float32)
    picture.written_to(out, table)
    pixels = np.asarray(wanted).reshape(wanted.height, wanted.width, bands)
    assert (out == pixels.transpose(2, 0, 1) + 256 * np.arange(bands).reshape(bands, 1, 1)).all()


@pytest.mark.parametrize("kind", OURS)
def test_a_crop_a_resize_and_a_flip_are_all_done(kind: str) -> None:
    source = counted(file_of(kind))
    steps = [("crop", 3, 4, 40, 41), ("resize", 24, 24, 2, None, None), ("transpose", 0)]
    found = begun(source, steps)
    assert found is not None and found[1] == 3 and source.tally == DecodeTally(ours=True)


def test_a_file_that_is_not_ours_is_resized_all_the_same() -> None:
    source = counted(file_of("png RGB"))
    found = begun(source, [("crop", 3, 4, 40, 41), ("resize", 24, 24, 2, None, None), ("transpose", 0)])
    assert found is not None and found[1] == 3 and source.tally == DecodeTally()


def test_a_file_that_is_not_ours_is_not_copied_for_a_resize_that_is_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    source = counted(file_of("png RGB"))
    monkeypatch.setattr(PictureFile, "whole", lambda self: pytest.fail("it is decoded here"))
    assert begun(source, [("resize", 24, 24, 2, None, 2.0)]) is None, "with a gap"


def test_the_picture_ends_before_a_step_that_pillow_must_take() -> None:
    inverted: Step = ("point", bytes(range(256))[::-1] * 3)
    found = begun(counted(file_of("jpeg 4:2:0")), [("crop", 3, 4, 40, 41), inverted, ("transpose", 0)])
    assert found is not None and found[1] == 1


def test_a_part_of_a_file_gives_the_pixels_of_the_whole() -> None:
    data = file_of("jpeg 4:2:0", 200, 150)
    part = part_of(data, Region(60, 50, 41, 33), 200, 150)
    assert not isinstance(part, NotCut)
    steps: list[Step] = [("crop", 60, 50, 101, 83), ("resize", 30, 30, 3, None, None)]
    source = PictureFile(part.data, Shape(200, 150, "RGB"), part=part)
    source.tally = DecodeTally()
    found = begun(source, steps)
    assert found is not None and source.tally == DecodeTally(ours=True)
    assert found[0].image().tobytes() == run(counted(data).whole(), steps).tobytes()
    beyond: Any = [("crop", 0, 0, 101, 83)]
    assert begun(source, beyond) is None, "the part does not hold it"


def test_a_damaged_file_is_left_to_pillow() -> None:
    source = counted(file_of("jpeg scan damaged"))
    assert begun(source, [("crop", 0, 0, 70, 50), ("resize", 9, 9, 2, None, None)]) is None
    assert source.tally == DecodeTally()


def test_without_a_tally_nothing_is_done() -> None:
    source = source_of(file_of("jpeg 4:2:0"))
    assert source is not None and begun(source, []) is None


def test_no_pixels_are_made_where_the_header_alone_is_to_be_looked_at() -> None:
    source = counted(file_of("jpeg 4:2:0"))
    source.sealed = True
    with pytest.raises(PixelsWanted):
        begun(source, [("crop", 0, 0, 9, 9)])


def test_a_picture_that_fills_beyond_its_border_does_so_once() -> None:
    picture = Picture(np.full((4, 5, 3), 7, np.uint8), "RGB")
    assert picture.does(("crop", -1, -1, 6, 5)) and not picture.does(("crop", -1, 0, 9, 3))
    expected = Image.new("RGB", (5, 4), (7, 7, 7)).crop((-1, -1, 6, 5))
    assert picture.image().tobytes() == expected.tobytes()
