"""Where programs can be cut, and the rectangle of a picture that they read: no px outside of it matters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.part import Region
from sophon_loader.kinds.image.primitives import Shape, output, run
from sophon_loader.kinds.image.segments import SEGMENTS, leading, read_by, shrunk, turned, turned_back
from sophon_loader.programs.program import Step
from tests.support.drawn import examples
from tests.support.program_examples import INVERTED, SIZE, TAKEN, Taken, noise

CROP: Step = ("crop", 1, 2, 21, 22)
RESIZE: Step = ("resize", 9, 9, 2, None, None)
BLUR: Step = ("filter", "box", 1, 1)
BENT: Step = ("transform", 9, 9, 0, (1, 0, 0, 0, 1, 0), 0, None)
FLIP: Step = ("transpose", 0)
GREY: Step = ("convert", "L")
POINT: Step = ("point", INVERTED)


@pytest.mark.parametrize(
    ("steps", "in_front", "shrinking"),
    [
        ((), 0, 0),
        ((CROP,), 1, 1),
        ((FLIP, GREY, POINT), 3, 0),
        ((FLIP, RESIZE, FLIP, GREY), 4, 2),
        ((CROP, RESIZE, BLUR, CROP), 2, 2),
        ((BLUR, CROP), 0, 0),
        ((BENT, RESIZE), 0, 0),
        ((GREY, CROP, POINT, BENT, RESIZE), 3, 2),
    ],
    ids=str,
)
def test_the_leading_run_and_its_shrinking_part(steps: tuple[Step, ...], in_front: int, shrinking: int) -> None:
    assert (leading(steps), shrunk(steps)) == (in_front, shrinking)


def test_the_segments_of_a_picture() -> None:
    assert ImageKind().segments == SEGMENTS == ("file", "decoded", "shrunk", "8-bit", "table")


# --- transposing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", range(7))
@given(data=st.data())
def test_a_rectangle_is_turned_and_turned_back(method: int, data: st.DataObject) -> None:
    width, height = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    left, top = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    box = left, top, data.draw(st.integers(left + 1, width)), data.draw(st.integers(top + 1, height))
    image = Image.fromarray(np.arange(width * height, dtype=np.uint8).reshape(height, width))
    whole, shape = image.transpose(Image.Transpose(method)), Shape(width, height, "L")
    there = turned(method, box, shape)
    assert whole.crop(there) == image.crop(box).transpose(Image.Transpose(method))
    assert turned_back(method, there, shape) == box


# --- what is read -----------------------------------------------------------------------------------------------------


def boxes(image: Shape) -> st.SearchStrategy[Step]:
    """Crops of an image that lie in it, around it, or beside it."""

    def spans(side: int) -> st.SearchStrategy[tuple[int, int]]:
        return st.tuples(st.integers(-5, side + 4), st.integers(1, side + 9)).map(lambda one: (one[0], one[0] + one[1]))

    both = st.tuples(spans(image.width), spans(image.height))
    return both.map(lambda one: ("crop", one[0][0], one[1][0], one[0][1], one[1][1]))


@st.composite
def resizes(draw: st.DrawFn, image: Shape) -> Step:
    """Resizes of an image, from all of it or a part, with every filter."""
    box = None
    if draw(st.booleans()):
        x0, x1 = sorted(draw(st.tuples(*[st.floats(0, image.width)] * 2)))
        y0, y1 = sorted(draw(st.tuples(*[st.floats(0, image.height)] * 2)))
        box = (x0, y0, x1, y1) if x1 - x0 > 0.01 and y1 - y0 > 0.01 else None
    width, height, resample = draw(st.integers(1, 20)), draw(st.integers(1, 20)), draw(st.integers(0, 5))
    return ("resize", width, height, resample, box, draw(st.sampled_from([None, None, 1.5])))


@st.composite
def leading_runs(draw: st.DrawFn, image: Shape) -> list[Step]:
    """Steps whose output px depend on px near them alone."""
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        point: Step = ("point", INVERTED * (1 if image.mode == "L" else 3))
        simple = st.integers(0, 6).map(lambda one: ("transpose", one)) | st.sampled_from([GREY, point])
        simple |= st.tuples(st.just("reduce"), st.integers(2, 5), st.integers(1, 5))
        step = draw(boxes(image) | resizes(image) | simple)
        made = output(step, image)
        assert made is not None, step
        steps.append(step)
        image = made
    return steps


def see_px_outside_do_not_matter(size: tuple[int, int], steps: list[Step]) -> None:
    shape = Shape(*size, "RGB")
    region = read_by(steps, shape)
    assert Region(0, 0, *size).contains(region) and region.width > 0 and region.height > 0
    box = region.left, region.top, region.left + region.width, region.top + region.height
    image, other = noise(shape, 1), noise(shape, 2)
    other.paste(image.crop(box), box)
    run_length = leading(steps)
    assert run(image, steps[:run_length]) == run(other, steps[:run_length])


@examples(500)
@given(st.data())
def test_px_outside_the_rectangle_do_not_matter(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    see_px_outside_do_not_matter(size, data.draw(leading_runs(Shape(*size, "RGB"))))


@pytest.mark.parametrize("one", [one for one in TAKEN if one.mode == "RGB"], ids=str)
def test_of_each_primitive(one: Taken) -> None:
    for steps in ([one.step], [CROP, one.step], [("crop", -3, -4, 37, 26), one.step]):
        if one.step[0] != "resize" or one.step[4] is None:
            see_px_outside_do_not_matter(SIZE, steps)


def test_what_comes_behind_the_leading_run_reads_all_of_what_that_makes() -> None:
    assert read_by([CROP, BLUR, ("crop", 0, 0, 1, 1)], Shape(*SIZE, "RGB")) == Region(1, 2, 20, 20)
    assert read_by([BENT, CROP], Shape(*SIZE, "RGB")) == Region(0, 0, *SIZE)


def test_a_rectangle_is_no_larger_than_it_has_to_be() -> None:
    """By a px or two on each side, besides what a filter reaches."""
    for resample, reach in ((0, 3), (2, 4), (1, 8)):
        steps = [("resize", 200, 150, resample, None, None), ("crop", 100, 75, 101, 76)]
        region = read_by(steps, Shape(400, 300, "RGB"))
        assert region.width <= 2 + 2 * reach and region.height <= 2 + 2 * reach
