"""`webp`: an RGB image as lossless WebP, by Pillow, with its fastest settings."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, UnidentifiedImageError

from sophon_loader.encodings.encoding import Encoded, Payload, image_size
from sophon_loader.errors import EncodingError

MAX_SIDE_PX = 16383
"""A limit of the format itself."""


class WebpEncoding:
    """Meta: `size` [width, height]. Quality 0 and method 0 only choose how hard the encoder tries."""

    name = "webp"

    def accepts(self, value: Any) -> bool:
        return (
            isinstance(value, Image.Image)
            and value.mode == "RGB"
            and 0 < min(value.size) <= max(value.size) <= MAX_SIDE_PX
        )

    def encode(self, value: Image.Image) -> Encoded:
        out = io.BytesIO()
        # The metadata that Pillow would copy from `info` is not part of the value on the wire.
        value.save(out, "WEBP", lossless=True, quality=0, method=0, icc_profile=b"", exif=b"", xmp=b"")
        return Encoded(self.name, {"size": list(value.size)}, out.getbuffer())

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        size = image_size(meta)
        try:
            with Image.open(io.BytesIO(payload), formats=("WEBP",)) as image:
                if image.size != size:
                    raise EncodingError(f"webp must be of the size in its header {size}, got {image.size}")
                decoded: Image.Image = image.convert("RGB")
        except (UnidentifiedImageError, OSError, ValueError) as error:
            raise EncodingError(f"webp payload of {len(payload)} bytes must be decodable: {error}") from error
        decoded.info.clear()
        return decoded
