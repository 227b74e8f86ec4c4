"""The blocks of a GIF file up to its second picture, since only that tells an animation."""

from __future__ import annotations

import struct

from sophon_loader.kinds.image.header_fields import Header, UnusualFile

_MAX_EXTENSIONS, _MAX_BLOCKS = 64, 4096
_SCREEN = struct.Struct("<HHBBB")
_PICTURE = struct.Struct("<HHHHB")
_EXTENSION, _SEPARATOR, _TRAILER = 0x21, 0x2C, 0x3B
_CONTROL, _APPLICATION = 0xF9, 0xFF
_GREYS = bytes(value for value in range(256) for _ in range(3))


def read_gif(data: bytes) -> Header:
    """As `header_of`, which handles the errors."""
    width, height, flags, _, _ = _SCREEN.unpack_from(data, 6)
    at, has_colours = _read_palette(data, 13, flags)
    at, transparent = _skip_extensions(data, at)
    left, top, picture_width, picture_height, flags = _PICTURE.unpack_from(data, at + 1)
    if data[4:6] not in (b"7a", b"9a") or data[at] != _SEPARATOR:
        raise UnusualFile
    at, has_own_colours = _read_palette(data, at + 10, flags)
    at, _ = _skip_extensions(data, _skip_blocks(data, at + 1))
    if data[at] not in (_SEPARATOR, _TRAILER):
        raise UnusualFile
    mode = "P" if (has_colours if has_own_colours is None else has_own_colours) else "L"
    width, height = max(width, left + picture_width), max(height, top + picture_height)
    return Header("GIF", mode, width, height, 1, False, data[at] == _SEPARATOR, 8, transparent)


def _read_palette(data: bytes, at: int, flags: int) -> tuple[int, bool | None]:
    """Where it ends, and whether it has colours: Pillow drops one of ascending greys; None where there is none."""
    if not flags & 0x80:
        return at, None
    nbytes = 6 << (flags & 7)
    return at + nbytes, data[at : at + nbytes] != _GREYS[:nbytes]


def _skip_blocks(data: bytes, at: int) -> int:
    for _ in range(_MAX_BLOCKS):
        if not data[at]:
            return at + 1
        at += 1 + data[at]
    raise UnusualFile


def _skip_extensions(data: bytes, at: int) -> tuple[int, bool]:
    """Where they end, and whether one of them makes a colour transparent."""
    transparent = False
    for _ in range(_MAX_EXTENSIONS):
        if data[at] != _EXTENSION:
            return at, transparent
        kind, nbytes = data[at + 1], data[at + 2]
        if kind == _CONTROL:
            transparent |= bool(data[at + 3] & 1)
        # Pillow reads on behind the end of an empty extension, and of an empty one of Netscape's.
        is_loop = kind == _APPLICATION and data.startswith(b"NETSCAPE2.0", at + 3)
        if not nbytes or (kind == _CONTROL and nbytes != 4) or (is_loop and not data[at + 3 + nbytes]):
            raise UnusualFile
        at = _skip_blocks(data, at + 2)
    raise UnusualFile
