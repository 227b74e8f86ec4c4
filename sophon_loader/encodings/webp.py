"""`webp`: an RGB image as lossless WebP, by Pillow, with its fastest settings."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, UnidentifiedImageError

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import UsedAt, compressed_image
from sophon_loader.encodings.rgb import MAX_RGB_PIXELS, is_rgb
from sophon_loader.errors import EncodingError, raised_by_handler

MAX_WEBP_SIDE_PX = 16383
"""A limit of the format itself."""
_DECODE_PER_ENCODE = 0.54
"""CPU seconds of Pillow's decoder per second of its encoder; 0.50 and 0.63 for the images of docs/results.md."""


class WebpEncoding(Encoding):
    """Meta: `size` [width, height]. Quality 0 and method 0 only choose how hard the encoder tries."""

    name = "webp"
    used_at = UsedAt.RESIZED
    estimate = compressed_image(_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return is_rgb(value) and max(value.size) <= MAX_WEBP_SIDE_PX

    def encode(self, value: Image.Image) -> Encoded:
        out = io.BytesIO()
        # The metadata that Pillow would copy from `info` is not part of the value on the wire.
        value.save(out, "WEBP", lossless=True, quality=0, method=0, icc_profile=b"", exif=b"", xmp=b"")
        return Encoded(self.name, {"size": list(value.size)}, out.getbuffer())

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        size = image_size(meta)
        if size != _size_of(payload) or size[0] * size[1] > MAX_RGB_PIXELS:
            raise EncodingError(f"webp must be lossless, of the size in its header {size} and not too large")
        try:
            with Image.open(io.BytesIO(payload), formats=("WEBP",)) as image:
                decoded: Image.Image = image.convert("RGB")
        except (UnidentifiedImageError, OSError, ValueError) as error:
            if raised_by_handler(error):
                raise
            raise EncodingError(f"webp payload of {len(payload)} bytes must be decodable: {error}") from error
        decoded.info.clear()
        return decoded


def _size_of(payload: Payload) -> tuple[int, int] | None:
    """(width, height) of a file with nothing but a lossless image, None for any other.

    Read here because Pillow's decoder allocates the canvas before anyone can look at its size.
    """
    start = bytes(payload[:25])
    if len(start) < 25 or (start[:4], start[8:16], start[20]) != (b"RIFF", b"WEBPVP8L", 0x2F):
        return None
    bits = int.from_bytes(start[21:25], "little")
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
