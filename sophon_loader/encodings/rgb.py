"""Checks shared by the encodings of RGB images: of images to encode, and of a decoder's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Payload
from sophon_loader.errors import EncodingError, raised_by_handler

MAX_RGB_PIXELS = 1 << 26
"""Maximum size, px, below Pillow's limit for bombs: a few bytes may decode to this many. Larger ones go as `pixels`."""


def is_rgb(value: Any) -> bool:
    """Return True if `value` is an RGB image of at least 1 px and at most the limit."""
    return (
        type(value) is Image.Image
        and value.mode == "RGB"
        and min(value.size) > 0
        and value.width * value.height <= MAX_RGB_PIXELS
    )


def decoded_rgb(name: str, decode: Callable[[bytes], Any], payload: Payload, size: tuple[int, int]) -> Image.Image:
    """Decode a payload by a function of imagecodecs and return the image.

    Args:
        name: of the encoding.
        decode: the decoder; gives uint8[height, width, 3] for an RGB image.
        payload: as it arrived; its header has been checked.
        size: expected [width, height] in px.

    Raises:
        EncodingError: the payload is not an RGB image of this size.
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
