"""The decoder gives Pillow's pixels for every sampling layout, size class, box and way of writing the scan."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.native import decoding
from tests.native.make_jpeg import DENSITIES, LAYOUTS, Spec, drawn_jpegs, make_jpeg
from tests.native.pixels import border_boxes, random_box
from tests.support.drawn import examples

pytestmark = pytest.mark.skipif(not decoding.built, reason="the C extension is not built")

WAYS = [True, *([False] if decoding.available else [])]
"""Plain C, and vector code where the processor has what it needs."""

# One MCU, just over one MCU (chroma of 1 and 2 samples in the last), several, and rows that fill vectors.
SIZES = [(1, 1), (3, 2), (5, 4), (8, 8), (17, 9), (20, 33), (36, 18), (70, 61), (150, 40)]


def pillow(data: bytes) -> NDArray[np.uint8]:
    """uint8[height, width, channels]."""
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    return pixels.reshape(*pixels.shape[:2], -1)


def assert_pillows(data: bytes, box: tuple[int, int, int, int] | None, want: NDArray[np.uint8]) -> None:
    """Compare `box` (left, top, width, height) with what Pillow made of all of it, in each way."""
    left, top, width, height = box or (0, 0, want.shape[1], want.shape[0])
    corners = None if box is None else (left, top, left + width, top + height)
    for plain in WAYS:
        got = decoding.decode(data, corners, plain=plain)
        assert got is not None, (box, plain)
        np.testing.assert_array_equal(got, want[top : top + height, left : left + width], f"{box} plain={plain}")


@pytest.mark.parametrize("restart_interval", [0, 1, 3, 7])
@pytest.mark.parametrize("optimise", [False, True], ids=["annex-k", "optimised"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_borders_and_random_boxes(layout: str, optimise: bool, restart_interval: int) -> None:
    for rng, width, height, data in drawn_jpegs(SIZES, layout, optimise, restart_interval):
        want = pillow(data)
        boxes = [random_box(rng, width, height) for _ in range(6)]
        for box in [None, *border_boxes(width, height), *boxes]:
            assert_pillows(data, box, want)


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
        dc_step=draw(st.sampled_from([0, 1, 60])),
        sof=draw(st.sampled_from([0xC0, 0xC1])),
    )


@examples(250, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs(), data=st.data())
def test_any_box_of_any_picture(spec: Spec, data: st.DataObject) -> None:
    left, top = data.draw(st.integers(0, spec.width - 1)), data.draw(st.integers(0, spec.height - 1))
    width = data.draw(st.integers(1, spec.width - left))
    height = data.draw(st.integers(1, spec.height - top))
    jpeg = make_jpeg(spec)
    assert_pillows(jpeg, (left, top, width, height), pillow(jpeg))


@pytest.mark.parametrize("quality", [10, 60, 90, 100])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_that_pillow_writes(mode: str, subsampling: str, quality: int) -> None:
    """Quality 100 has long codes and large values; 10 has blocks of few."""
    rng = random.Random(quality)
    for width, height in [(160, 130), (97, 51)]:
        noise = Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height))
        smooth = noise.resize((9, 7)).resize((width, height), Image.Resampling.BICUBIC)
        for blend in (0.05, 0.4, 1.0):
            out = io.BytesIO()
            picture = Image.blend(smooth, noise, blend).convert(mode)
            picture.save(out, "JPEG", quality=quality, subsampling=subsampling, optimize=rng.random() < 0.5)
            want = pillow(out.getvalue())
            for box in [None, *(random_box(rng, width, height) for _ in range(6))]:
                assert_pillows(out.getvalue(), box, want)


@pytest.mark.parametrize("ids", [(1, 2, 3), (0, 1, 2), (82, 71, 66)], ids=["ycc", "from 0", "RGB"])
@pytest.mark.parametrize("adobe", [None, 0, 1, 2])
@pytest.mark.parametrize("jfif", [False, True])
def test_colour_space(jfif: bool, adobe: int | None, ids: tuple[int, ...]) -> None:
    """JFIF, Adobe and the component ids decide whether a file is YCbCr; what is not, is left to Pillow."""
    data = make_jpeg(Spec(50, 40, LAYOUTS["4:2:0"], ids=ids, adobe_transform=adobe, jfif=jfif))
    if jfif or adobe == 1 or (adobe is None and ids[0] != 82):
        assert_pillows(data, (20, 9, 11, 13), pillow(data))
    else:
        assert decoding.decode(data, plain=True) is None
