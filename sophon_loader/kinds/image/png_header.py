"""The chunks of a PNG file in front of its pixels."""

from __future__ import annotations

import struct
import zlib

from sophon_loader.kinds.image.header_fields import Header, UnusualFile
from sophon_loader.kinds.image.tiff_directory import Span, read_orientation

_MAX_CHUNKS = 256
_CHUNK = struct.Struct(">I4s")
_IHDR = struct.Struct(">IIBBBBBI")
_MODES = {
    (1, 0): "1",
    (2, 0): "L",
    (4, 0): "L",
    (8, 0): "L",
    (16, 0): "I;16",
    (8, 2): "RGB",
    (16, 2): "RGB",
    (1, 3): "P",
    (2, 3): "P",
    (4, 3): "P",
    (8, 3): "P",
    (8, 4): "LA",
    (16, 4): "RGBA",
    (8, 6): "RGBA",
    (16, 6): "RGBA",
}
"""Pillow's, by bits per sample and type of colour."""
_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_ODD = (b"IHDR", b"IEND", b"fdAT")
_XMP = b"XML:com.adobe.xmp"
_ODD_KEYWORDS = (b"transparency", b"exif", b"xmp", b"Raw profile type exif")
"""Texts become entries of `Image.info`, and these would stand for what chunks say."""


def read_png(data: bytes) -> Header:
    """As `header_of`, which handles the errors."""
    width, height, bits, colour, compression, filters, interlace, crc = _IHDR.unpack_from(data, 16)
    mode = _MODES.get((bits, colour))
    if data[8:16] != b"\0\0\0\rIHDR" or zlib.crc32(data[12:29]) != crc:
        raise UnusualFile
    if mode is None or compression or filters or interlace > 1:
        raise UnusualFile
    spans = _chunks(data)
    animation = spans.get(b"acTL")
    if (mode == "P" and b"PLTE" not in spans) or (b"fcTL" in spans and animation is None):
        raise UnusualFile
    if animation and not 2 <= struct.unpack_from(">I", data, animation[0])[0] <= 1 << 31:
        raise UnusualFile
    orientation = read_orientation(data, spans.get(b"eXIf"), None)
    transparent = mode in ("LA", "RGBA") or b"tRNS" in spans
    return Header("PNG", mode, width, height, orientation, False, animation is not None, bits, transparent)


def _chunks(data: bytes) -> dict[bytes, Span]:
    """Where the contents of each type are."""
    at = 33
    spans: dict[bytes, Span] = {}
    for _ in range(_MAX_CHUNKS):
        nbytes, kind = _CHUNK.unpack_from(data, at)
        if kind == b"IDAT":
            return spans
        body, end = at + 8, at + 8 + nbytes
        if kind in _TEXTS:
            _check_text(data, kind, body, end)
        elif kind in _ODD or kind in spans or not kind.isalpha():
            raise UnusualFile
        spans[kind] = (body, end)
        at = end + 4
    raise UnusualFile


def _check_text(data: bytes, kind: bytes, body: int, end: int) -> None:
    if data.startswith(_ODD_KEYWORDS, body, end):
        raise UnusualFile
    if data.startswith(_XMP, body, end):
        is_readable = kind == b"iTXt" and data.startswith(_XMP + b"\0\0", body, end)  # the second zero: not compressed
        if not is_readable or data.find(b"tiff:Orientation", body, end) >= 0:
            raise UnusualFile
