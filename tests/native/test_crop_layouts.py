"""Zero pixel differences for every sampling layout, size class and way of writing the scan."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from sophon_loader import native
from tests.native.make_jpeg import DENSITIES, LAYOUTS, Spec, drawn_jpegs, make_jpeg
from tests.native.pixels import assert_same_pixels, border_boxes, decode, random_box
from tests.support.drawn import examples

pytestmark = pytest.mark.usefixtures("extension")

# One MCU, just over one MCU (chroma of 1 and 2 samples in the last), and several.
SIZES = [(1, 1), (3, 2), (5, 4), (8, 8), (17, 9), (20, 33), (36, 18), (70, 61)]


@pytest.mark.parametrize("restart_interval", [0, 1, 3, 7])
@pytest.mark.parametrize("optimise", [False, True], ids=["annex-k", "optimised"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_borders_and_random_boxes(layout: str, optimise: bool, restart_interval: int) -> None:
    for rng, width, height, data in drawn_jpegs(SIZES, layout, optimise, restart_interval):
        image = decode(data)
        boxes = [random_box(rng, width, height) for _ in range(4)]
        for box in border_boxes(width, height) + boxes:
            assert_same_pixels(data, box, image)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    return Spec(
        width=draw(st.integers(1, 90)),
        height=draw(st.integers(1, 60)),
        sampling=LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))],
        seed=draw(st.integers(0, 1 << 20)),
        restart_interval=draw(st.sampled_from([0, 0, 1, 2, 5, 40])),
        optimise=draw(st.booleans()),
        fill_bytes=draw(st.sampled_from([0, 1, 3])),
        density=draw(st.sampled_from(DENSITIES)),
        dc_step=draw(st.sampled_from([0, 1, 60, 250])),
        sof=draw(st.sampled_from([0xC0, 0xC1])),
    )


@examples(250, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), data=st.data())
def test_any_box_of_any_picture(spec: Spec, data: st.DataObject) -> None:
    left, top = data.draw(st.integers(0, spec.width - 1)), data.draw(st.integers(0, spec.height - 1))
    width = data.draw(st.integers(1, spec.width - left))
    height = data.draw(st.integers(1, spec.height - top))
    assert_same_pixels(make_jpeg(spec), (left, top, width, height))


@pytest.mark.parametrize("ids", [(1, 2, 3), (0, 1, 2), (82, 71, 66)], ids=["ycc", "from 0", "RGB"])
@pytest.mark.parametrize("adobe", [None, 0, 1])
@pytest.mark.parametrize("jfif", [False, True])
def test_colour_space_survives(jfif: bool, adobe: int | None, ids: tuple[int, ...]) -> None:
    """JFIF, Adobe and the component ids decide whether a decoder sees YCbCr or RGB."""
    spec = Spec(50, 40, LAYOUTS["4:2:0"], ids=ids, adobe_transform=adobe, jfif=jfif)
    assert_same_pixels(make_jpeg(spec), (20, 9, 11, 13))


def test_a_category_missing_from_an_optimised_table_is_added() -> None:
    """The jump to the first kept block of a row may be larger than any step in the file."""
    grown = 0
    for seed in range(30):
        data = make_jpeg(Spec(128, 64, LAYOUTS["4:4:4"], seed=seed, optimise=True, dc_step=5))
        result = assert_same_pixels(data, (100, 40, 20, 20))
        grown += _table_nbytes(result.data) > _table_nbytes(data)
    assert grown > 10


def _table_nbytes(data: bytes) -> int:
    total = at = 2
    while data[at + 1] != 0xDA:
        nbytes = int.from_bytes(data[at + 2 : at + 4], "big")
        total += nbytes if data[at + 1] == 0xC4 else 0
        at += 2 + nbytes
    return total


@pytest.mark.parametrize("optimise", [False, True], ids=["annex-k", "optimised"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_whole_picture_is_the_same_scan(layout: str, optimise: bool) -> None:
    """Byte for byte, with its padding: nothing is coded differently without need."""
    data = make_jpeg(Spec(90, 70, LAYOUTS[layout], optimise=optimise, density=0.2))
    result = assert_same_pixels(data, (0, 0, 90, 70))
    assert result.data[-_scan_nbytes(data) :] == data[-_scan_nbytes(data) :]


def _scan_nbytes(data: bytes) -> int:
    return len(data) - data.index(b"\0\x3f\0", data.index(b"\xff\xda")) - 3


def test_the_largest_dc_values() -> None:
    """Their differences need the largest category there is."""
    spec = Spec(100, 80, LAYOUTS["4:2:0"], optimise=True, dc_step=32000, dc_limit=16383)
    assert_same_pixels(make_jpeg(spec), (40, 30, 20, 20))


def test_one_crop_after_another() -> None:
    """A cropped file is an ordinary file: it can be cropped again."""
    rng = random.Random(5)
    data = make_jpeg(Spec(150, 120, LAYOUTS["4:2:0"], restart_interval=4, optimise=True))
    box = (0, 0, 150, 120)
    while min(box[2:]) > 1:
        left, top, width, height = random_box(rng, *box[2:])
        box = (box[0] + left, box[1] + top, width, height)
        result = assert_same_pixels(data, box)
        data, box = result.data, (result.dx, result.dy, width, height)


def test_restart_intervals_are_gone_from_the_output() -> None:
    data = make_jpeg(Spec(80, 80, LAYOUTS["4:2:0"], restart_interval=1))
    result = native.crop(data, 20, 20, 30, 30)
    assert isinstance(result, native.Cropped)
    assert b"\xff\xdd" not in result.data
    assert not any(bytes([0xFF, 0xD0 + i]) in result.data for i in range(8))
