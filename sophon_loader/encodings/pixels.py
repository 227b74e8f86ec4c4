"""`pixels`: a PIL image as uint8 HWC, uncompressed."""

from __future__ import annotations

import reprlib
from typing import Any

from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size, size_fits
from sophon_loader.encodings.estimate import Exact, UsedAt
from sophon_loader.errors import EncodingError

_BANDS = {"L": 1, "LA": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "RGBA": 4, "CMYK": 4}


class PixelsEncoding(Encoding):
    """Meta: `mode` (PIL's name) and `size` [width, height]."""

    name = "pixels"
    used_at = UsedAt.ANY_STAGE
    estimate = Exact()

    def accepts(self, value: Any) -> bool:
        return type(value) is Image.Image and value.mode in _BANDS and size_fits(*value.size)

    def encode(self, value: Image.Image) -> Encoded:
        return Encoded(self.name, {"mode": value.mode, "size": list(value.size)}, value.tobytes())

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        width, height = image_size(meta)
        mode = meta.get("mode")
        if not isinstance(mode, str) or mode not in _BANDS or len(payload) != width * height * _BANDS[mode]:
            raise EncodingError(
                f"pixels must be width x height x bands bytes, got {len(payload)} bytes for "
                f"{width} x {height} of mode {reprlib.repr(mode)}"
            )
        if not payload:
            return Image.new(mode, (width, height))
        return Image.frombytes(mode, (width, height), payload)
