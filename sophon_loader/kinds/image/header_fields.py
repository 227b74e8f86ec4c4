"""A header's fields, and the same in 12 bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

PACKED_NBYTES = 12
"""What `pack` gives."""


class Header(NamedTuple):
    """What `PIL.Image.open` tells of a file.

    Args:
        format: Pillow's name: "JPEG", "MPO", "PNG", "WEBP" or "GIF".
        mode: Pillow's mode of the opened file, as Pillow 11 and later have it.
        width, height: px, as stored.
        orientation: EXIF's, 1 to 8; 1 without one. Metadata behind a PNG's pixels is not looked at.
        progressive: a progressive JPEG.
        several: more than one picture: an animation, or a JPEG with an index of several (MPF).
        bits: per sample: 1, 2, 4, 8 or 16.
        has_transparency: `Image.has_transparency_data`.
        may_have_metadata: a JPEG that begins like one with EXIF or XMP data; False for other formats.
        header_nbytes: where a JPEG's first scan begins: so many bytes hold the header. 0 for other formats, and for a
            header that was packed.
    """

    format: str
    mode: str
    width: int
    height: int
    orientation: int = 1
    progressive: bool = False
    several: bool = False
    bits: int = 8
    has_transparency: bool = False
    may_have_metadata: bool = False
    header_nbytes: int = 0


class UnusualFile(Exception):
    """A file that only Pillow can tell about."""


_PACKED = struct.Struct(">IIBBBB")

# A place in these tables is a number on the wire: new names go to the end.
_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF")
_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")
_BITS = (1, 2, 4, 8, 16)

_PROGRESSIVE, _SEVERAL, _TRANSPARENT, _METADATA = 8, 16, 32, 64
"""Flags above the three bits of the orientation."""


def pack(header: Header) -> bytes:
    """A header in `PACKED_NBYTES` bytes, without `header_nbytes`."""
    flags = header.orientation - 1
    flags |= _PROGRESSIVE * header.progressive | _SEVERAL * header.several | _TRANSPARENT * header.has_transparency
    flags |= _METADATA * header.may_have_metadata
    mode, kind = _MODES.index(header.mode), _FORMATS.index(header.format)
    return _PACKED.pack(header.width, header.height, mode, flags, kind, header.bits)


def unpack(packed: bytes) -> Header:
    """The inverse of `pack`.

    Raises:
        ValueError: it is not what that gives.
    """
    if len(packed) != PACKED_NBYTES:
        raise ValueError(f"a packed header must have {PACKED_NBYTES} bytes, got {len(packed)}")
    width, height, mode, flags, kind, bits = _PACKED.unpack(packed)
    if not (width and height and mode < len(_MODES) and flags < 128 and kind < len(_FORMATS) and bits in _BITS):
        raise ValueError(f"a packed header must be what pack() gives, got {packed.hex()}")
    return Header(
        _FORMATS[kind],
        _MODES[mode],
        width,
        height,
        (flags & 7) + 1,
        bool(flags & _PROGRESSIVE),
        bool(flags & _SEVERAL),
        bits,
        bool(flags & _TRANSPARENT),
        bool(flags & _METADATA),
    )
