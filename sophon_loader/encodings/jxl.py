"""`jxl`: an RGB image as lossless JPEG XL, by libjxl in imagecodecs (the extra `[codecs]`)."""

from __future__ import annotations

import re
from functools import cached_property, partial
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import Fitted, UsedAt, compressed_image
from sophon_loader.encodings.rgb import MAX_RGB_PIXELS, decoded_rgb, is_rgb
from sophon_loader.errors import EncodingError

_FAST, _SAFE = 1, 3
"""Efforts. The fast one has about the bytes of `htj2k` for less of the agent's CPU; no command measures it yet.
The safe one has 13 % (imagenet) and 16 % (photos) fewer bytes than `htj2k`, for five times the CPU."""
_FAST_FROM = (0, 12)
"""The first libjxl whose effort 1 is lossless: all of 20 000 noisy images came back. With 0.11.2, of ramps with noise
that overflow from 255 to 0, 6 % come back as others, or not at all."""
_DECODE_PER_ENCODE = {_FAST: 2.6, _SAFE: 0.58}
"""CPU seconds to decode per second of encoding, by effort. The safe one took 0.59 and 0.58 for the images of
docs/results.md. The fast one was tried by hand with libjxl 0.12.0 on 60 crops of 224 px."""
_CODESTREAM = b"\xff\x0a"
"""The first bytes of a codestream without a container."""
_SIDE_BITS = (9, 13, 18, 30)
"""Number of bits for a side in the SizeHeader, by the two bits before it."""
_RATIOS = ((1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))
"""Width to height, by the three bits behind the height, from 1 on."""


class JxlEncoding(Encoding):
    """Meta: `size` [width, height]. The effort affects only the encoder; any loader decodes each.

    The agent does not decode its result to check it. At effort 3 all of 50 000 noisy and odd-sized images came back;
    libjxl 0.11.2 gets 2 in 1000 of them wrong at effort 1 (tests/contract/test_jxl.py).
    """

    name = "jxl"
    used_at = UsedAt.RESIZED

    @cached_property
    def effort(self) -> int:
        """Effort for the installed library, which is loaded to read its version."""
        import imagecodecs

        return effort_of(imagecodecs.jpegxl_version())

    @cached_property
    def estimate(self) -> Fitted:  # type: ignore[override]  # nobody sets it
        """Estimate for the effort: decoding a picture that was written fast takes longer than writing it."""
        return compressed_image(_DECODE_PER_ENCODE[self.effort])

    def accepts(self, value: Any) -> bool:
        return is_rgb(value)

    def encode(self, value: Image.Image) -> Encoded:
        import imagecodecs

        data = imagecodecs.jpegxl_encode(np.asarray(value), lossless=True, effort=self.effort, numthreads=1)
        return Encoded(self.name, {"size": list(value.size)}, data)

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        import imagecodecs

        width, height = image_size(meta)
        if _size_of(payload) != (width, height) or width * height > MAX_RGB_PIXELS:
            raise EncodingError(f"jxl must be of the size in its header {width} x {height} and not too large")
        decoder = partial(imagecodecs.jpegxl_decode, numthreads=1)
        return decoded_rgb(self.name, decoder, payload, (width, height))


def effort_of(version: str) -> int:
    """Return the lowest effort at which a libjxl is lossless; the safe one if the version cannot be read.

    Args:
        version: as `imagecodecs.jpegxl_version()` gives it.

    Example:
        >>> effort_of("libjxl 0.11.2")
        3
    """
    found = re.match(r"libjxl (\d+)\.(\d+)", version)
    return _FAST if found and tuple(map(int, found.groups())) >= _FAST_FROM else _SAFE


def _size_of(payload: Payload) -> tuple[int, int] | None:
    """Return (width, height) of a bare codestream (ISO/IEC 18181-1, SizeHeader), None for anything else.

    Read here because the decoder allocates the image before its size can be checked.
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
