"""The first directory of a TIFF file, which EXIF and the index of several pictures (MPF) are; and XMP's orientation."""

from __future__ import annotations

import re
import struct

from sophon_loader.kinds.image.header_fields import UnusualFile

Span = tuple[int, int]
"""Where something begins and ends in the file, bytes."""

Entry = tuple[int, int, int]
"""Type, number of values, and the value or where it lies."""

_MAX_ENTRIES = 256
_ENTRY = {b"II*\0": struct.Struct("<HHII"), b"MM\0*": struct.Struct(">HHII")}
_NBYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
"""Of one value of each type that Pillow knows."""
_SHORT, _LONG, _UNDEFINED = 3, 4, 7

_ORIENTATION, _N_PICTURES, _PICTURES = 0x0112, 0xB001, 0xB002
_XMP_ORIENTATION = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def read_orientation(data: bytes, exif: Span | None, xmp: Span | None) -> int:
    """1 to 8, from the TIFF part of EXIF or, where that has none, from XMP.

    Raises:
        UnusualFile: EXIF is damaged.
    """
    entry = _read_entries(data, exif).get(_ORIENTATION) if exif else None
    if exif is None or entry is None:
        found = _XMP_ORIENTATION.search(data, *xmp) if xmp else None
        value = int(found[1]) if found else 1
    elif entry[:2] != (_SHORT, 1):
        raise UnusualFile
    else:
        value = entry[2] >> 16 if _order(data, exif) == ">" else entry[2] & 0xFFFF
    return value if 1 <= value <= 8 else 1


def count_pictures(data: bytes, index: Span) -> int:
    """How many the index (MPF) lists, at least 1.

    Raises:
        UnusualFile: the index is damaged.
    """
    entries = _read_entries(data, index)
    kind, n_values, count = entries.get(_N_PICTURES, (0, 0, 0))
    pictures = entries.get(_PICTURES, (0, 0, 0))
    if (kind, n_values) != (_LONG, 1) or not 1 <= count <= _MAX_ENTRIES or pictures[:2] != (_UNDEFINED, 16 * count):
        raise UnusualFile
    attributes = struct.unpack_from(f"{_order(data, index)}{4 * count}I", data, index[0] + pictures[2])[::4]
    if any(attribute >> 24 & 7 for attribute in attributes):  # not a JPEG
        raise UnusualFile
    return count


def _order(data: bytes, tiff: Span) -> str:
    return ">" if data[tiff[0]] == 0x4D else "<"


def _read_entries(data: bytes, tiff: Span) -> dict[int, Entry]:
    """By tag. Pillow forgets the tags behind a value that lies outside, and leaves out what is too much in all."""
    start, end = tiff
    entry = _ENTRY.get(data[start : start + 4])
    if entry is None or end - start < 10:
        raise UnusualFile
    order = _order(data, tiff)
    at = start + struct.unpack_from(order + "I", data, start + 4)[0]
    count = struct.unpack_from(order + "H", data, at)[0]
    first, last = at + 2, at + 2 + 12 * count
    if count > _MAX_ENTRIES or last > end:
        raise UnusualFile
    entries: dict[int, Entry] = {}
    room = end - start
    for tag, kind, n_values, value in entry.iter_unpack(data[first:last]):
        nbytes = n_values * _NBYTES.get(kind, 0)
        if nbytes > 4:
            room -= nbytes
        if tag in entries or room < 0 or (nbytes > 4 and start + value + nbytes > end):
            raise UnusualFile
        entries[tag] = (kind, n_values, value)
    return entries
