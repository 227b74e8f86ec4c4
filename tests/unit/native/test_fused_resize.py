"""`resampling.resize` against the installed Pillow's: sizes, boxes, filters, both ways of computing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sophon_loader.native import resampling
from sophon_loader.native.resampling import Box, Pixels

pytestmark = pytest.mark.skipif(
    not resampling.available or not resampling.EXACT, reason="the C extension is not built, or not used"
)

NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = FILTERS = range(6)
PLAIN = [False, True]


def picture(height: int, width: int, channels: int, seed: int) -> Pixels:
    """Random pixels, one half of them black or white, where filters with negative lobes overshoot."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, channels), np.uint8)
    return np.where(rng.random(pixels.shape) < 0.5, np.uint8(255) * (pixels > 127), pixels).astype(np.uint8)


def of_pillow(pixels: Pixels, size: tuple[int, int], box: Box | None, filter: int) -> Pixels:
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return np.asarray(image.resize(size, filter, box)).reshape(size[1], size[0], -1)


def assert_pillows(pixels: Pixels, size: tuple[int, int], box: Box | None, filter: int) -> None:
    expected = of_pillow(pixels, size, box, filter)
    for plain in PLAIN:
        made = resampling.resize(pixels, size, box, filter, plain=plain)
        assert made is not None
        assert np.array_equal(made, expected), (pixels.shape, size, box, filter, plain)


sides = st.one_of(st.integers(1, 12), st.integers(1, 150), st.sampled_from([1, 2, 255, 256, 700]))


@st.composite
def boxes(draw: st.DrawFn, width: int, height: int) -> Box | None:
    """None, or one inside, with whole numbers, halves and other fractions; also empty ones."""
    if draw(st.booleans()):
        return None
    position = st.sampled_from([1.0, 0.5, 0.001, 1 / 3])
    box = [0.0] * 4
    for axis, side in ((0, width), (1, height)):
        unit = draw(position)
        first, second = sorted(draw(st.tuples(st.integers(0, int(side / unit)), st.integers(0, int(side / unit)))))
        box[axis], box[axis + 2] = first * unit, second * unit
    return box[0], box[1], box[2], box[3]


@given(
    data=st.data(),
    shape=st.tuples(sides, sides, st.sampled_from([1, 3])),
    size=st.tuples(sides, sides),
    filter=st.sampled_from(FILTERS),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_is_pillows(
    data: st.DataObject, shape: tuple[int, int, int], size: tuple[int, int], filter: int, seed: int
) -> None:
    box = data.draw(boxes(shape[1], shape[0]))
    assert_pillows(picture(*shape, seed), size, box, filter)


@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize(
    ("shape", "size", "box"),
    [
        ((375, 500), (224, 224), None),
        ((500, 375), (224, 224), None),
        ((900, 400), (224, 224), None),  # the vertical pass goes first since Pillow 13
        ((820, 8), (9, 30), None),  # first since Pillow 12.2
        ((820, 8), (200, 30), (0.5, 3, 7, 700)),  # first in 12.2 and 12.3 alone
        ((300, 224), (224, 224), None),  # one pass
        ((224, 300), (224, 224), None),
        ((224, 224), (224, 224), None),  # none
        ((224, 224), (224, 224), (0.5, 0, 223.5, 224)),  # as large, but from between the pixels
        ((40, 60), (20, 10), (7, 9, 27, 19)),  # a crop
        ((40, 60), (20, 10), (7.25, 9, 27.25, 19)),
        ((40, 60), (20, 10), (5, 5, 5, 30)),  # nothing
        ((40, 60), (20, 10), (60, 40, 60, 40)),
        ((1, 1), (97, 61), None),
        ((1, 3000), (3, 2), None),
        ((3000, 1), (2, 3), None),
        ((1, 2), (3000, 1), None),
        ((2, 1), (1, 3000), None),
        ((2000, 3), (1, 1), (0.1, 0.1, 2.9, 1999.9)),
        ((3, 5), (64, 64), (1.2, 0.7, 1.2001, 0.7001)),
    ],
)
def test_shapes_that_take_another_way(
    shape: tuple[int, int], size: tuple[int, int], box: Box | None, filter: int
) -> None:
    for channels in (1, 3):
        assert_pillows(picture(*shape, channels, seed=7), size, box, filter)


@pytest.mark.parametrize(
    ("release", "order"),
    [
        ("13.0.0", "DOWN_FIRST_CHEAPER"),
        ("14", "DOWN_FIRST_CHEAPER"),
        ("13.1.0.dev0", "DOWN_FIRST_CHEAPER"),
        ("12.3.0", "DOWN_FIRST_TALL"),
        ("12.2.0", "DOWN_FIRST_TALL"),
        ("12.1.1", "DOWN_FIRST_NEVER"),
        ("9.5.0.post2", "DOWN_FIRST_NEVER"),
    ],
)
def test_the_order_of_the_passes_goes_by_the_release(release: str, order: str) -> None:
    assert resampling.order_of(release) == order


@pytest.mark.parametrize("filter", FILTERS)
def test_the_largest_sums_do_not_overflow(filter: int) -> None:
    for size in ((7, 7), (90, 90), (31, 200)):
        for pixels in (np.full((64, 64, 3), 255, np.uint8), np.indices((64, 64, 3)).sum(0) % 2 * np.uint8(255)):
            assert_pillows(pixels.astype(np.uint8), size, None, filter)


@pytest.mark.parametrize("plain", PLAIN)
def test_memory_handed_in_is_filled_and_nothing_around_it(plain: bool) -> None:
    around = np.full(13 * 11 * 3 + 128, 77, np.uint8)
    out = around[64:-64].reshape(13, 11, 3)
    pixels = picture(50, 40, 3, seed=1)
    for filter in FILTERS:
        assert resampling.resize(pixels, (11, 13), None, filter, out, plain=plain) is out
        assert np.array_equal(out, of_pillow(pixels, (11, 13), None, filter))
    assert (around[:64] == 77).all()
    assert (around[-64:] == 77).all()


@pytest.mark.parametrize(
    ("shape", "size", "box", "filter"),
    [
        ((10, 10, 3), (0, 5), None, 2),
        ((10, 10, 3), (5, -1), None, 2),
        ((10, 10, 2), (5, 5), None, 2),
        ((10, 10, 3), (5, 5), (-0.5, 0, 10, 10), 2),
        ((10, 10, 3), (5, 5), (0, 0, 10.5, 10), 2),
        ((10, 10, 3), (5, 5), (6, 0, 5, 10), 2),
        ((10, 10, 3), (5, 5), (0, 0, float("nan"), 10), 2),
        ((10, 10, 3), (5, 5), (0, float("-inf"), 10, 10), 2),
    ],
)
def test_what_pillow_refuses_is_refused(
    shape: tuple[int, int, int], size: tuple[int, int], box: Box | None, filter: int
) -> None:
    with pytest.raises(ValueError, match="must"):
        resampling.resize(np.zeros(shape, np.uint8), size, box, filter)


def test_arrays_that_do_not_fit_are_refused() -> None:
    pixels: Any = np.zeros((10, 10, 3), np.uint8)
    outs: list[Any] = [
        np.zeros((5, 5, 1), np.uint8),
        np.zeros((5, 10, 3), np.uint8)[:, ::2],
        np.zeros((5, 5, 3), np.int8),
    ]
    for wrong in (pixels[:, ::2], pixels[0], pixels.astype(np.int8)):
        with pytest.raises(ValueError, match="pixels must be uint8"):
            resampling.resize(wrong, (5, 5))
    for out in outs:
        with pytest.raises(ValueError, match="out must be uint8"):
            resampling.resize(pixels, (5, 5), out=out)
    with pytest.raises(ValueError, match="overlap"):
        resampling.resize(pixels, (5, 5), out=pixels.reshape(-1)[75:150].reshape(5, 5, 3))


def test_filters_that_are_not_ours_are_left_to_pillow() -> None:
    for filter in (-1, 6, 7, 8):
        assert resampling.resize(np.zeros((4, 4, 3), np.uint8), (5, 5), filter=filter) is None


def test_absurd_sizes_are_left_to_pillow_before_memory_is_taken() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    assert resampling.resize(pixels, (70_000, 1)) is None
    assert resampling.resize(np.zeros((1, 70_000, 1), np.uint8), (10, 1)) is None
    assert resampling.resize(pixels, (60_000, 60_000)) is None
    large = np.zeros((5_000, 62_500, 1), np.uint8)  # never touched: a row would be made of all rows, each of them wide
    assert resampling.resize(large, (60_000, 1)) is None
