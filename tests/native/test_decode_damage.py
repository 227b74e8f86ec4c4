"""A damaged file: Pillow's pixels or none, and none where Pillow raises or warns."""

from __future__ import annotations

import io
import random

import pytest
from PIL import Image

from sophon_loader.native import decoding
from tests.native.fuzz.against_pillow import changed, seeds
from tests.native.fuzz.decoding_against_pillow import assert_pixels_or_none, is_decoded_alike
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg, with_segment
from tests.support.drawn import FULL

pytestmark = pytest.mark.skipif(not decoding.built, reason="the C extension is not built")


@pytest.mark.parametrize("part", range(8))
def test_changed_files(part: int) -> None:
    rng = random.Random(part)
    files = seeds()[part::8]
    n_pixels = 0
    count = 250 if FULL else 50
    for _ in range(count):
        data = changed(rng, rng.choice(files))
        n_pixels += is_decoded_alike(data, rng)
    assert n_pixels > count / 10, "nearly everything is given up: this compares nothing"


@pytest.mark.parametrize("layout", ["4:2:0", "4:4:4", "grey"])
def test_truncated_files(layout: str) -> None:
    """Cut at every byte, and with an end-of-image marker put behind the cut."""
    rng = random.Random(layout)
    data = make_jpeg(Spec(60, 44, LAYOUTS[layout], restart_interval=3, optimise=True))
    for n in range(len(data)):
        assert not assert_pixels_or_none(data[:n], rng) or n == len(data)
        assert_pixels_or_none(data[:n] + b"\xff\xd9", rng)


def test_what_lies_behind_the_end_is_no_matter() -> None:
    data = make_jpeg(Spec(60, 44, LAYOUTS["4:2:0"]))
    assert assert_pixels_or_none(data + b"junk\xff\xd8", random.Random(0))


@pytest.mark.parametrize("dc_step", [250, 900, 2000])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_coefficients_that_no_picture_has(dc_step: int, density: float) -> None:
    """Vector code works with 16 bits: what does not fit is given up, in plain C as well."""
    for seed in range(30 if FULL else 6):
        spec = Spec(40, 30, LAYOUTS["4:4:4"], seed, density=density, dc_step=dc_step, dc_limit=2000)
        assert_pixels_or_none(make_jpeg(spec), random.Random(seed))


def test_products_that_wrap_around() -> None:
    """257 times a step of 255 is -1 in 16 bits, which looks harmless there."""
    data = make_jpeg(Spec(40, 30, LAYOUTS["grey"], density=0.0, dc_step=100_000, dc_limit=257))
    coarse = data.replace(bytes([7, *[3 + i // 8 for i in range(63)]]), bytes([255]) * 64)
    assert coarse != data
    assert not assert_pixels_or_none(coarse, random.Random(0))


@pytest.mark.parametrize(
    "box",
    [(0, 0, 0, 4), (4, 4, 4, 4), (5, 5, 4, 6), (-1, 0, 4, 4), (0, 0, 51, 4), (0, 36, 4, 41), (0, 0, 1 << 40, 4)],
)
def test_boxes_that_are_not_inside(box: tuple[int, int, int, int]) -> None:
    assert decoding.decode(make_jpeg(Spec(50, 40, LAYOUTS["4:2:0"])), box, plain=True) is None


@pytest.mark.parametrize(
    "sampling",
    [((3, 2), (2, 1), (1, 1)), ((2, 2), (1, 1), (1, 1), (2, 2)), ((1, 1), (1, 1))],
    ids=["fractional", "four components", "two components"],
)
def test_kinds_that_are_left_to_pillow(sampling: tuple[tuple[int, int], ...]) -> None:
    assert decoding.decode(make_jpeg(Spec(50, 40, sampling, ids=(1, 2, 3, 4))), plain=True) is None


@pytest.mark.parametrize("progressive", [True, False])
def test_files_of_pillows_that_are_left_to_it(progressive: bool) -> None:
    out = io.BytesIO()
    Image.new("CMYK", (40, 30)).save(out, "JPEG", progressive=progressive)
    assert decoding.decode(out.getvalue(), plain=True) is None


def test_a_small_file_cannot_ask_for_much_memory() -> None:
    data = make_jpeg(Spec(50, 40, LAYOUTS["4:2:0"]))
    frame = data.index(b"\xff\xc0") + 5
    assert decoding.decode(data[:frame] + b"\x24\x00\x24\x00" + data[frame + 4 :], plain=True) is None


def test_metadata_that_pillow_refuses() -> None:
    data = make_jpeg(Spec(50, 40, LAYOUTS["4:2:0"]))
    assert decoding.decode(with_segment(data, 0xE1, b"Exif\0\0junk"), plain=True) is None
    assert decoding.decode(with_segment(data, 0xEE, b"Adobe"), plain=True) is None
