"""The chunks of a WebP file (RFC 9649), and the first bytes of its picture."""

from __future__ import annotations

import struct
from typing import NamedTuple

from sophon_loader.kinds.image.header_fields import Header, UnusualFile
from sophon_loader.kinds.image.tiff_directory import Span, read_orientation

_MAX_CHUNKS = 64
_CHUNK = struct.Struct("<4sI")
_ANIMATED, _XMP, _EXIF, _ALPHA = 2, 4, 8, 16
"""Flags in VP8X."""
_SKIPPED = (b"ALPH", b"ICCP", b"ANIM")


class _Picture(NamedTuple):
    width: int
    height: int
    has_alpha: bool


def read_webp(data: bytes) -> Header:
    """As `header_of`, which handles the errors."""
    if data[8:12] != b"WEBP":
        raise UnusualFile
    if data[12:16] != b"VP8X":
        return _header(_read_picture(data, 20), 1, False)
    flags = data[20]
    picture = _Picture(_load24(data, 24) + 1, _load24(data, 27) + 1, bool(flags & _ALPHA))
    spans = _chunks(data, flags)
    if not flags & _ANIMATED:
        still = _read_picture(data, spans[b"VP8L" if b"VP8L" in spans else b"VP8 "][0])
        if still[:2] != picture[:2]:
            raise UnusualFile
        # libwebp looks at the flag for a lossy picture only.
        picture = still if b"VP8L" in spans else picture._replace(has_alpha=picture.has_alpha or b"ALPH" in spans)
    exif = spans.get(b"EXIF")
    if exif and data.startswith(b"Exif\0\0", *exif):
        exif = (exif[0] + 6, exif[1])
    return _header(picture, read_orientation(data, exif, spans.get(b"XMP ")), bool(flags & _ANIMATED))


def _header(picture: _Picture, orientation: int, several: bool) -> Header:
    width, height, has_alpha = picture
    mode = "RGBA" if has_alpha else "RGB"
    return Header("WEBP", mode, width, height, orientation, False, several, 8, has_alpha)


def _load24(data: bytes, at: int) -> int:
    return data[at] | data[at + 1] << 8 | data[at + 2] << 16


def _read_picture(data: bytes, body: int) -> _Picture:
    """That of the chunk whose contents begin there, lossy or lossless."""
    kind, nbytes = _CHUNK.unpack_from(data, body - 8)
    if kind == b"VP8L":
        word = struct.unpack_from("<I", data, body + 1)[0]
        if data[body] != 0x2F or word >> 29:
            raise UnusualFile
        return _Picture((word & 0x3FFF) + 1, (word >> 14 & 0x3FFF) + 1, bool(word >> 28 & 1))
    tag = _load24(data, body)
    # A key frame of a known profile that is shown, and whose first part lies inside.
    if kind != b"VP8 " or tag & 0x19 != 0x10 or tag >> 5 >= nbytes or data[body + 3 : body + 6] != b"\x9d\x01\x2a":
        raise UnusualFile
    width, height = struct.unpack_from("<HH", data, body + 6)
    return _Picture(width & 0x3FFF, height & 0x3FFF, False)


def _picture_in(data: bytes, frame: int) -> int:
    """Where the contents of the picture's chunk begin in the contents of ANMF."""
    kind, nbytes = _CHUNK.unpack_from(data, frame + 16)
    return frame + 24 + (8 + nbytes + (nbytes & 1) if kind == b"ALPH" else 0)


def _chunks(data: bytes, flags: int) -> dict[bytes, Span]:
    """Where the contents of those behind VP8X are, up to the last that the flags make one look for."""
    wanted = ([b"EXIF"] if flags & _EXIF else []) + ([b"XMP "] if flags & _XMP else [])
    pictures, to_come = ((b"ANMF",), 2) if flags & _ANIMATED else ((b"VP8 ", b"VP8L"), 1)
    spans: dict[bytes, Span] = {}
    at = 30
    for _ in range(_MAX_CHUNKS):
        kind, nbytes = _CHUNK.unpack_from(data, at)
        if kind in pictures:
            to_come -= 1
            if kind == b"ANMF":
                _read_picture(data, _picture_in(data, at + 8))  # libwebp drops a frame without one
        elif kind in wanted:
            wanted.remove(kind)
            if at + 8 + nbytes > len(data):
                raise UnusualFile
        elif kind not in _SKIPPED:
            raise UnusualFile
        spans[kind] = (at + 8, at + 8 + nbytes)
        if to_come <= 0 and not wanted:
            return spans
        at += 8 + nbytes + (nbytes & 1)
    raise UnusualFile
