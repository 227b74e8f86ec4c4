"""The one claim of the crop, as a check: the same pixels as cutting the decoded original."""

from __future__ import annotations

import io
import random

from PIL import Image

from sophon_loader import native

Box = tuple[int, int, int, int]  # left, top, width, height


def decode(data: bytes) -> Image.Image:
    """Decode as the loader's Decode op does."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def cut(image: Image.Image, box: Box) -> Image.Image:
    left, top, width, height = box
    return image.crop((left, top, left + width, top + height))


def assert_same_pixels(data: bytes, box: Box, decoded: Image.Image | None = None) -> native.Cropped:
    """Crop `data` to `box` and compare with the decoded original, which may be given."""
    result = native.crop(data, *box)
    assert isinstance(result, native.Cropped), (result, box)
    width, height = box[2:]
    want = cut(decoded or decode(data), box)
    got = decode(result.data)
    assert result.dx + width <= got.width and result.dy + height <= got.height, (result[1:], got.size, box)
    assert cut(got, (result.dx, result.dy, width, height)).tobytes() == want.tobytes(), box
    return result


def random_box(rng: random.Random, width: int, height: int) -> Box:
    """A box inside the picture, its corners drawn evenly."""
    x = sorted((rng.randrange(width), rng.randrange(width)))
    y = sorted((rng.randrange(height), rng.randrange(height)))
    return x[0], y[0], x[1] - x[0] + 1, y[1] - y[0] + 1


def border_boxes(width: int, height: int) -> list[Box]:
    """Single pixels in the corners and on each border, single rows and columns there, and all of it."""
    x, y = width - 1, height - 1
    pixels = [(0, 0), (x, 0), (0, y), (x, y), (x // 2, 0), (x // 2, y), (0, y // 2), (x, y // 2)]
    lines = [(0, 0, width, 1), (0, y, width, 1), (0, 0, 1, height), (x, 0, 1, height)]
    return [(a, b, 1, 1) for a, b in pixels] + lines + [(0, 0, width, height)]
