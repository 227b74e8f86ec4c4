"""The segments of a JPEG file up to its first scan (T.81, annex B)."""

from __future__ import annotations

import struct

from sophon_loader.kinds.image.header_fields import Header, UnusualFile
from sophon_loader.kinds.image.tiff_directory import Span, count_pictures, read_orientation

_MAX_SEGMENTS = 512
_APP1, _APP2, _SOS = 0xE1, 0xE2, 0xDA
_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_SKIPPED = frozenset((0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)))
"""DHT, DQT, DRI, COM, APP0 to APP15."""
_FRAME = struct.Struct(">BHHB")
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_STARTS_OF_METADATA = (b"Exif", b"http://ns.adobe.com/xap/")
_EXIF, _XMP, _ULTRA_HDR = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0", b' hdrgm:Version="'


def read_jpeg(data: bytes) -> Header:
    """As `header_of`, which handles the errors."""
    at, frame = 2, 0
    metadata: list[Span] = []
    indices: list[Span] = []
    for _ in range(_MAX_SEGMENTS):
        marker = data[at + 1]
        if marker == 0xFF == data[at]:  # a fill byte
            at += 1
            continue
        body, end = at + 4, at + 2 + (data[at + 2] << 8 | data[at + 3])
        if data[at] != 0xFF or not body <= end <= len(data):
            raise UnusualFile
        if marker == _SOS:
            return _header(data, frame, metadata, indices, end)
        if _BASELINE <= marker <= _PROGRESSIVE:
            if frame:
                raise UnusualFile
            frame = at
        elif marker not in _SKIPPED:
            raise UnusualFile
        elif marker == _APP1:
            metadata.append((body, end))
        elif marker == _APP2 and data.startswith(b"MPF\0", body, end):
            indices.append((body + 4, end))
        at = end
    raise UnusualFile


def _header(data: bytes, frame: int, metadata: list[Span], indices: list[Span], nbytes: int) -> Header:
    bits, height, width, n_components = _FRAME.unpack_from(data, frame + 4)
    length = data[frame + 2] << 8 | data[frame + 3]
    if not frame or bits != 8 or n_components not in _MODES or length != 8 + 3 * n_components or len(indices) > 1:
        raise UnusualFile
    orientation = _orientation(data, metadata) if metadata else 1
    several = bool(indices) and count_pictures(data, indices[0]) > 1
    # Pillow takes an Ultra HDR photo for a plain one.
    is_mpo = several and not any(data.find(_ULTRA_HDR, *span) >= 0 for span in metadata)
    name, progressive = "MPO" if is_mpo else "JPEG", data[frame + 1] == _PROGRESSIVE
    may_have_metadata = any(data.startswith(_STARTS_OF_METADATA, *span) for span in metadata)
    mode = _MODES[n_components]
    return Header(name, mode, width, height, orientation, progressive, several, 8, False, may_have_metadata, nbytes)


def _orientation(data: bytes, metadata: list[Span]) -> int:
    exif = [span for span in metadata if data.startswith(_EXIF, *span)]
    xmp = [span for span in metadata if data.startswith(_XMP, *span)]
    if len(exif) > 1:  # Pillow joins them
        raise UnusualFile
    return read_orientation(data, (exif[0][0] + len(_EXIF), exif[0][1]) if exif else None, xmp[-1] if xmp else None)
