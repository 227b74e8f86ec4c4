"""`jxl`: an RGB image as lossless JPEG XL, by imagecodecs (the optional extra `[jxl]`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Payload, image_size
from sophon_loader.errors import EncodingError


class JxlEncoding:
    """Meta: `size` [width, height]. Effort 1 takes a third of WebP's time and gives about as many bytes."""

    name = "jxl"

    def accepts(self, value: Any) -> bool:
        return isinstance(value, Image.Image) and value.mode == "RGB" and min(value.size) > 0

    def encode(self, value: Image.Image) -> Encoded:
        import imagecodecs

        data = imagecodecs.jpegxl_encode(np.asarray(value), lossless=True, effort=1, numthreads=1)
        return Encoded(self.name, {"size": list(value.size)}, data)

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        import imagecodecs

        width, height = image_size(meta)
        try:
            pixels = imagecodecs.jpegxl_decode(bytes(payload), numthreads=1)
        except Exception as error:  # imagecodecs has one exception class per codec, made at run time
            raise EncodingError(f"jxl payload of {len(payload)} bytes must be decodable: {error}") from error
        if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
            raise EncodingError(f"jxl must be {width} x {height} px of RGB, got {pixels.shape} of {pixels.dtype}")
        return Image.fromarray(pixels)
