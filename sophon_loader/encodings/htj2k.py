"""`htj2k`: an RGB image as lossless high-throughput JPEG 2000, by OpenJPH in imagecodecs (the extra `[codecs]`)."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload, image_size
from sophon_loader.encodings.estimate import UsedAt, compressed_image
from sophon_loader.encodings.rgb import MAX_RGB_PIXELS, decoded_rgb, is_rgb
from sophon_loader.errors import EncodingError

_DECODE_PER_ENCODE = 0.57
"""CPU seconds to decode per second of encoding; 0.55 to 0.59 for the images of docs/results.md."""
_START = struct.Struct(">4s2H8I")
"""SOC and SIZ (ISO/IEC 15444-1): markers; length, capabilities; and (width, height) of the grid, its offset, a tile,
its offset."""
_MARKERS = b"\xff\x4f\xff\x51"
_HIGH_THROUGHPUT = 0x4000
"""The capability bit of ISO/IEC 15444-15."""
_RGB = b"\x00\x03" + 3 * b"\x07\x01\x01"
"""Three components of 8 bits without a sign, none of them subsampled."""
_ONE_AT_A_TIME = threading.Lock()


class Htj2kEncoding(Encoding):
    """Meta: `size` [width, height]. One tile, the reversible wavelet and colour transform.

    Against `webp` for crops of 224 px: 4 % fewer bytes (imagenet), 2 % fewer (photos), three quarters of the CPU to
    encode, two thirds to decode.
    """

    name = "htj2k"
    used_at = UsedAt.RESIZED
    estimate = compressed_image(_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return is_rgb(value)

    def encode(self, value: Image.Image) -> Encoded:
        import imagecodecs

        with _nothing_ignored():
            data = imagecodecs.htj2k_encode(np.asarray(value), reversible=True, rgb=True, planar=False)
        return Encoded(self.name, {"size": list(value.size)}, data)

    def decode(self, meta: dict[str, Any], payload: Payload) -> Image.Image:
        import imagecodecs

        size = image_size(meta)
        if _size_of(payload) != size or size[0] * size[1] > MAX_RGB_PIXELS:
            raise EncodingError(f"htj2k must be RGB in one tile, of the size in its header {size} and not too large")
        with _nothing_ignored():
            return decoded_rgb(self.name, imagecodecs.htj2k_decode, payload, size)


@contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Raises what imagecodecs 2026.3 cannot: errors of OpenJPH in the midst of an image, behind which px are missing.

    They end in a function that may not raise, so Python only hands them to `sys.unraisablehook`, which prints them.
    """
    ignored: list[str] = []
    with _ONE_AT_A_TIME:
        usual: Callable[[sys.UnraisableHookArgs], Any] = sys.unraisablehook

        def note(args: sys.UnraisableHookArgs) -> None:
            if isinstance(args.object, str) and args.object.startswith("imagecodecs."):
                ignored.append(str(args.exc_value))
            else:
                usual(args)

        sys.unraisablehook = note
        try:
            yield
        finally:
            sys.unraisablehook = usual
    if ignored:
        raise EncodingError(f"htj2k must be a whole codestream: {ignored[0]:.200}")


def _size_of(payload: Payload) -> tuple[int, int] | None:
    """(width, height) of a codestream of one tile of RGB, None for anything else.

    Read here because the decoder makes room for all tiles before anyone can look at them.
    """
    start = bytes(payload[: _START.size + len(_RGB)])
    if len(start) < _START.size + len(_RGB) or not start.endswith(_RGB):
        return None
    markers, length, capabilities, width, height, *others = _START.unpack_from(start)
    whole = (_MARKERS, _START.size + len(_RGB) - len(_MARKERS), _HIGH_THROUGHPUT, [0, 0, width, height, 0, 0])
    return (width, height) if (markers, length, capabilities, others) == whole else None
