"""`jxl`: an RGB image as lossless JPEG XL, by imagecodecs (the optional extra `[jxl]`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import UsedAt, compressed_image
from sophon_loader.errors import EncodingError

MAX_JXL_PIXELS = 1 << 26
"""Larger images go as `pixels`; a few bytes may decode to as many px."""
_DECODE_PER_ENCODE = 0.75
"""CPU seconds to decode per second of encoding, which decodes, too; 0.65 and 0.68 for the images of docs/results.md."""
_CODESTREAM = b"\xff\x0a"
"""The first bytes of a codestream without a container."""
_SIDE_BITS = (9, 13, 18, 30)
"""How many bits a side may have in the SizeHeader, by the two bits before it."""
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width to height, by the three bits behind the height, from 1 on."""


class JxlEncoding(Encoding):
    """Meta: `size` [width, height]. Effort 1, and effort 2 where that fails (see `encode`)."""

    name = "jxl"
    used_at = UsedAt.RESIZED
    estimate = compressed_image(_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return (
            type(value) is Image.Image
            and value.mode == "RGB"
            and min(value.size) > 0
            and value.width * value.height <= MAX_JXL_PIXELS
        )

    def encode(self, value: Image.Image) -> Encoded:
        import imagecodecs

        pixels = np.asarray(value)
        for effort in (1, 2):
            data = imagecodecs.jpegxl_encode(pixels, lossless=True, effort=effort, numthreads=1)
            # Trusted only after a look: with libjxl 0.11.2 effort 1 wrote other pixels for 86 of 45 437 noisy images.
            if np.array_equal(imagecodecs.jpegxl_decode(data, numthreads=1), pixels):
                return Encoded(self.name, {"size": list(value.size)}, data)
        raise EncodingError(f"jxl must give back the pixels it was given, got others for {value.size} px")

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        import imagecodecs

        width, height = image_size(meta)
        if _size_of(payload) != (width, height) or width * height > MAX_JXL_PIXELS:
            raise EncodingError(f"jxl must be of the size in its header {width} x {height} and not too large")
        try:
            pixels = imagecodecs.jpegxl_decode(bytes(payload), numthreads=1)
        except Exception as error:  # imagecodecs has one exception class per codec, made at run time
            raise EncodingError(f"jxl payload of {len(payload)} bytes must be decodable: {error}") from error
        if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
            raise EncodingError(f"jxl must be {width} x {height} px of RGB, got {pixels.shape} of {pixels.dtype}")
        return Image.fromarray(pixels)


def _size_of(payload: Payload) -> tuple[int, int] | None:
    """(width, height) of a bare codestream (ISO/IEC 18181-1, SizeHeader), None for anything else.

    Read here because the decoder allocates the image before anyone can look at its size.
    """
    start = bytes(payload[:12])
    if len(start) < 12 or start[:2] != _CODESTREAM:
        return None
    bits = int.from_bytes(start[2:], "little")

    def take(count: int) -> int:
        nonlocal bits
        value = bits & ((1 << count) - 1)
        bits >>= count
        return value

    in_eights = bool(take(1))

    def side() -> int:
        if in_eights:
            return 8 * (take(5) + 1)
        return take(_SIDE_BITS[take(2)]) + 1

    height = side()
    ratio = take(3)
    if ratio == 0:  # the width is written, too
        return side(), height
    numerator, denominator = _RATIOS[ratio - 1]
    return height * numerator // denominator, height
