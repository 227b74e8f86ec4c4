"""JPEG XL's fastest effort is not lossless for some noisy images, which is why the encoding uses another."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sophon_loader.encodings.catalogue import encoding_names
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
    if not wrong:
        pytest.skip(f"this libjxl gets every one of {count} noisy images right at effort 1")


def test_noise_of_every_size_comes_back_right() -> None:
    generator = np.random.default_rng(6)
    for _ in range(300):
        pixels = noisy(generator)[: generator.integers(1, 60), : generator.integers(1, 60)]
        assert np.array_equal(crossed(pixels), pixels)


def crossed(pixels: np.ndarray) -> np.ndarray:
    encoded = encode(Image.fromarray(pixels), "jxl")
    assert encoded.encoding == "jxl"
    return np.asarray(decode("jxl", encoded.meta, encoded.payload))
