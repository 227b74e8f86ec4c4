"""libjxl's fastest effort is not lossless for some noisy images before 0.12, so the encoding uses another there."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.encodings.jxl import JxlEncoding, effort_of
from sophon_loader.encodings.registry import decode, encode
from tests.support.drawn import FULL

pytestmark = pytest.mark.skipif("jxl" not in encoding_names(), reason="imagecodecs is not installed")


def noisy(generator: np.random.Generator) -> np.ndarray:
    """The kind of image that effort 1 gets wrong most often."""
    height, width = generator.integers(9, 60, 2)
    return (generator.integers(0, 64, (height, width, 3)) * 4).astype(np.uint8)


def test_images_that_effort_1_gets_wrong_come_back_right() -> None:
    import imagecodecs

    generator = np.random.default_rng(5)
    wrong = 0
    count = 2000 if FULL else 400
    for _ in range(count):
        pixels = noisy(generator)
        data = imagecodecs.jpegxl_encode(pixels, lossless=True, effort=1, numthreads=1)
        if not np.array_equal(imagecodecs.jpegxl_decode(data, numthreads=1), pixels):
            wrong += 1
            assert np.array_equal(crossed(pixels), pixels)
    if effort_of(imagecodecs.jpegxl_version()) == 1:
        assert not wrong, "the encoding uses this effort"
    elif not wrong:
        pytest.skip(f"this libjxl gets every one of {count} noisy images right at effort 1")


@pytest.mark.parametrize(
    ("version", "effort"),
    [("libjxl 0.11.2", 3), ("libjxl 0.12.0", 1), ("libjxl 1.0.0", 1), ("libjxl 0.9.1", 3), ("libjxl n/a", 3), ("", 3)],
)
def test_the_effort_is_the_least_that_is_lossless(version: str, effort: int) -> None:
    assert effort_of(version) == effort


def test_the_estimate_is_of_the_effort() -> None:
    fast, safe = JxlEncoding(), JxlEncoding()
    fast.effort, safe.effort = 1, 3
    assert fast.estimate.decode_per_encode > 1 > safe.estimate.decode_per_encode


def test_noise_of_every_size_comes_back_right() -> None:
    generator = np.random.default_rng(6)
    for _ in range(300):
        pixels = noisy(generator)[: generator.integers(1, 60), : generator.integers(1, 60)]
        assert np.array_equal(crossed(pixels), pixels)


def crossed(pixels: np.ndarray) -> np.ndarray:
    encoded = encode(Image.fromarray(pixels), "jxl")
    assert encoded.encoding == "jxl"
    return np.asarray(decode("jxl", encoded.meta, encoded.payload))
