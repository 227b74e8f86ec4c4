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
_BEFORE_SIZE = bytes.fromhex("ff4f ff51002f4000")
"""SOC, and SIZ up to the size (ISO/IEC 15444-1), with the capability bit of ISO/IEC 15444-15."""
_SIZE = struct.Struct(">8I")
"""(width, height) of the grid, its offset, a tile, its offset."""
_BEHIND_SIZE = bytes.fromhex(
    "0003 070101 070101 070101"  # three components of 8 bits without a sign, none of them subsampled
    "ff50 0008 00020000 0003"  # CAP: high throughput
    "ff52 000c 00 02 0001 01 05 04 04 40 01"  # COD: one layer, five levels of the reversible wavelet, colour transform
    "ff5c 0013 20 50585858 58585858 58585858 58505050"  # QCD: no quantisation
)
_COMMENT = struct.Struct(">2sH")
"""COM, and its length including the length field."""
_PART = struct.Struct(">6sI4s")
"""SOT of the only tile; bytes from there to the end mark; the mark of its only part, and SOD."""
_PART_BEGINS, _PART_IS_WHOLE, _END = bytes.fromhex("ff90000a0000"), bytes.fromhex("0001ff93"), bytes.fromhex("ffd9")
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
            raise EncodingError(f"htj2k must have the headers of this encoding, for {size} px, and not be too large")
        with _nothing_ignored():
            return decoded_rgb(self.name, imagecodecs.htj2k_decode, payload, size)


@contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Raise errors of OpenJPH in the middle of an image, which imagecodecs 2026.3 cannot raise; px are then missing.

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
    """Return (width, height) of a codestream with the headers that `encode` writes, None for any other.

    Compared here because the decoder allocates any size that a header names, and because OpenJPH 0.26 reads memory out
    of bounds if headers contradict each other. Only a comment may differ.
    """
    data = memoryview(payload)
    start, place = len(_BEFORE_SIZE), len(_BEFORE_SIZE) + _SIZE.size
    if data[:start] != _BEFORE_SIZE or data[place : place + len(_BEHIND_SIZE)] != _BEHIND_SIZE:
        return None
    width, height, *others = _SIZE.unpack_from(data, start)
    place += len(_BEHIND_SIZE)
    if len(data) >= place + _COMMENT.size:
        marker, length = _COMMENT.unpack_from(data, place)
        place += len(marker) + length if marker == b"\xff\x64" else 0
    if others != [0, 0, width, height, 0, 0] or len(data) < place + _PART.size:
        return None
    whole = (_PART_BEGINS, len(data) - place - len(_END), _PART_IS_WHOLE)
    return (width, height) if _PART.unpack_from(data, place) == whole and data[-len(_END) :] == _END else None
