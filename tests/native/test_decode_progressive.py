"""Progressive files: Pillow's pixels for every layout, box and order of scans; none where coefficients are missing."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sophon_loader.native import decoding
from tests.native.fuzz.against_pillow import changed
from tests.native.fuzz.decoding_against_pillow import assert_pixels_or_none, is_decoded_alike
from tests.native.make_jpeg import DENSITIES, LAYOUTS, Spec
from tests.native.make_progressive import make_progressive, scripts
from tests.native.pixels import border_boxes, random_box
from tests.native.test_decode_layouts import assert_pillows, pillow
from tests.support.drawn import FULL

pytestmark = pytest.mark.skipif(not decoding.built, reason="the C extension is not built")

SIZES = [(1, 1), (17, 9), (20, 33), (70, 61), (150, 40)]
NAMES = [*scripts(1)]
SPEC = Spec(60, 44, LAYOUTS["4:2:0"], density=0.3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_borders_and_random_boxes(layout: str, name: str) -> None:
    rng = random.Random(f"{layout} {name}")
    for width, height in SIZES:
        sampling = LAYOUTS[layout]
        spec = Spec(width, height, sampling, rng.randrange(1 << 30), density=rng.choice(DENSITIES))
        spec = replace(spec, restart_interval=rng.choice((0, 0, 1, 5)), fill_bytes=rng.choice((0, 0, 2)))
        data = make_progressive(spec, scripts(len(sampling))[name])
        boxes = [random_box(rng, width, height) for _ in range(4)]
        for box in [None, *border_boxes(width, height), *boxes]:
            assert_pillows(data, box, pillow(data))


def test_one_code_may_end_thousands_of_blocks() -> None:
    spec = Spec(1480, 1480, LAYOUTS["grey"], density=0.0)
    data = make_progressive(spec, scripts(1)["as libjpeg"])
    assert_pillows(data, (700, 800, 90, 70), pillow(data))


@pytest.mark.parametrize("name", NAMES)
def test_changed_files(name: str) -> None:
    rng = random.Random(name)
    files = [
        make_progressive(Spec(*size, sampling, restart_interval=rng.choice((0, 3)), density=0.3), scripts(3)[name])
        for size in ((60, 44), (90, 80))
        for sampling in (LAYOUTS["4:2:0"], LAYOUTS["4:4:4"])
    ]
    n_pixels = 0
    count = 400 if FULL else 60
    for _ in range(count):
        n_pixels += is_decoded_alike(changed(rng, rng.choice(files)), rng)
    assert n_pixels > count / 20, "nearly everything is given up: this compares nothing"


def test_truncated_files() -> None:
    rng = random.Random(0)
    data = make_progressive(SPEC, scripts(3)["as libjpeg"])
    for n in range(0, len(data), 1 if FULL else 7):
        assert not assert_pixels_or_none(data[:n], rng)
        assert_pixels_or_none(data[:n] + b"\xff\xd9", rng)


@pytest.mark.parametrize("left_out", range(len(scripts(3)["as libjpeg"])))
def test_missing_coefficients_are_left_to_pillow_which_smooths_them(left_out: int) -> None:
    script = scripts(3)["as libjpeg"]
    data = make_progressive(SPEC, script[:left_out] + script[left_out + 1 :])
    assert decoding.decode(data, plain=True) is None


def test_scans_that_say_the_same_again_are_left_to_pillow() -> None:
    script = scripts(3)["bands"]
    for again in script:
        assert decoding.decode(make_progressive(SPEC, [*script, again]), plain=True) is None


def test_thousands_of_scans_are_left_to_pillow() -> None:
    script = [((0,), 0, 0, 0, 0), *(((0,), k, k, 0, 0) for k in range(1, 64))]
    assert_pillows(data := make_progressive(Spec(20, 20, LAYOUTS["grey"]), script), None, pillow(data))
    more = [((0,), 0, 0, 0, 1), *script[1:], ((0,), 0, 0, 1, 0)]
    assert decoding.decode(make_progressive(Spec(20, 20, LAYOUTS["grey"]), more), plain=True) is None


def test_a_small_file_cannot_ask_for_much_memory() -> None:
    data = make_progressive(SPEC, scripts(3)["bands"])
    frame = data.index(b"\xff\xc2") + 5
    assert decoding.decode(data[:frame] + b"\x24\x00\x24\x00" + data[frame + 4 :], plain=True) is None
