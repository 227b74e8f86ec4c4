"""What the encodings of RGB images have in common: which images they take, and what a decoder may give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import EncodingError, raised_by_handler

MAX_RGB_PIXELS = 1 << 26
"""Below the size at which Pillow warns of a bomb: a few bytes may decode to as many. Larger images go as `pixels`."""


def is_rgb(value: Any) -> bool:
    """Whether `value` is an RGB image with px, and not too many of them."""
    return (
        type(value) is Image.Image
        and value.mode == "RGB"
        and min(value.size) > 0
        and value.width * value.height <= MAX_RGB_PIXELS
    )


def decoded_rgb(name: str, decode: Callable[[bytes], Any], payload: Payload, size: tuple[int, int]) -> Image.Image:
    """The image of a payload, by a decoder of imagecodecs.

    Args:
        name: of the encoding.
        decode: the decoder; gives uint8[height, width, 3] for an RGB image.
        payload: as it came; its own header has been looked at.
        size: that the image must have, [width, height] in px.

    Raises:
        EncodingError: it is no such image.
    """
    width, height = size
    try:
        pixels = decode(bytes(payload))
    except Exception as error:  # imagecodecs has one exception class per codec, made at run time
        if raised_by_handler(error):
            raise
        raise EncodingError(f"{name} payload of {len(payload)} bytes must be decodable: {error}") from error
    if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
        raise EncodingError(f"{name} must be {width} x {height} px of RGB, got {pixels.shape} of {pixels.dtype}")
    return Image.fromarray(pixels)
