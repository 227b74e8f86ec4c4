"""`lepton`: a whole JPEG file in fewer bytes, by lepton_jpeg_python (the extra `[codecs]`).

Lepton keeps the coefficients of a JPEG and models them better than its Huffman codes do. Decoding gives the file
itself, byte for byte, so it can be used like the original.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

from sophon_loader import native
from sophon_loader.encodings.encoding import Encoded, Encoding, Payload
from sophon_loader.encodings.estimate import Fitted, UsedAt
from sophon_loader.errors import EncodingError, raised_by_handler

MAX_LEPTON_NBYTES = 1 << 25
"""Maximum size of a file; larger ones go as they are, since one of this size takes seconds."""
MAX_LEPTON_PIXELS = 1 << 26
"""Maximum number of px, as for images: a few bytes may decode to this many, of 2 bytes each for three components."""
_DECODE_PER_ENCODE = 0.52
"""CPU seconds to decode per second of encoding, which decodes, too: 0.10 ms per KB of 0.09 and 0.10."""
_ONE_THREAD = {"threads": "single"}
"""Without, the library keeps a pool of threads: one process that is forked from another would wait for threads that it
does not have, and their CPU seconds would be counted nowhere."""
_START = struct.Struct("<2sBcB15xII")
"""Magic, version, kind of JPEG, number of segments; and the sizes of the JPEG file and of the header behind this."""
_MAGIC, _VERSION, _KINDS = b"\xcf\x84", 1, (b"Z", b"X")
"""The kinds are sequential and progressive."""
_HEAD = struct.Struct("<3sI")
"""The header's first part: its name, and the size of the JPEG's own header behind it."""
_SEGMENT = struct.Struct("<3sB3sHI10x")
"""Padding of the scan; and one segment: the row at which it begins, and its size in the JPEG file."""
_REST = struct.Struct("<3sI")
"""The part after the scan: its name and its size."""
_FRAME_NBYTES = _HEAD.size + _SEGMENT.size + _REST.size


class LeptonEncoding(Encoding):
    """Meta: `crc`, the CRC-32 of the file. The payload is a Lepton file of one segment.

    The library does not check that a file comes back as it was, so the agent does. All of 427 photographs do, and 10
    900 files that libjpeg wrote. Of damaged ones that can still be read, 5 % of the progressive do not, nor do some
    sound grey ones with restart markers (tests/contract/test_lepton.py).
    """

    name = "lepton"
    used_at = UsedAt.FILE
    estimate = Fitted(("file_nbytes", "one"), encode_per="file_nbytes", decode_per_encode=_DECODE_PER_ENCODE)

    def accepts(self, value: Any) -> bool:
        return type(value) is bytes and fits(value)

    def encode(self, value: bytes) -> Encoded:
        packed = compressed(value)
        meta = {"crc": zlib.crc32(value)}
        restored(meta, packed)
        return Encoded(self.name, meta, packed)

    def decode(self, meta: dict[str, Any], payload: Payload) -> bytes:
        return restored(meta, payload)


def fits(data: bytes) -> bool:
    """Return True if a file is a JPEG within the limits; Lepton may still not support its kind."""
    return len(data) <= MAX_LEPTON_NBYTES and _picture_fits(data)


def _picture_fits(jpeg: bytes) -> bool:
    size = native.image_size(jpeg)
    return size is not None and size[0] * size[1] <= MAX_LEPTON_PIXELS


def compressed(data: bytes) -> bytes:
    """Return a JPEG file as Lepton; `restored` may refuse it.

    Raises:
        EncodingError: Lepton does not support its kind: arithmetic coding, four components, an end cut off.
    """
    import lepton_jpeg_python

    return _run(lepton_jpeg_python.compress_bytes, data, {"max_partitions": 1, **_ONE_THREAD})


def restored(meta: dict[str, Any], payload: Payload) -> bytes:
    """Return the JPEG file of a payload.

    Args:
        meta: with `crc`.
        payload: of `compressed`.

    Raises:
        EncodingError: the result is not the file that was compressed.
    """
    import lepton_jpeg_python

    nbytes = _file_nbytes(payload)
    data = _run(lepton_jpeg_python.decompress_bytes, bytes(payload), _ONE_THREAD)
    if len(data) != nbytes or zlib.crc32(data) != meta.get("crc"):
        raise EncodingError(f"lepton must give back the file of {nbytes} bytes that it was given, got another")
    return data


def _run(function: Callable[..., bytes], data: bytes, options: dict[str, Any]) -> bytes:
    try:
        return function(data, options)
    except BaseException as error:  # a panic of the library, which is written in Rust, is no Exception
        is_the_librarys = isinstance(error, Exception) or type(error).__name__ == "PanicException"
        if not is_the_librarys or raised_by_handler(error):
            raise
        first = str(error).partition("\n")[0]
        raise EncodingError(f"lepton must be able to read {len(data)} bytes: {first:.200}") from error


def _file_nbytes(payload: Payload) -> int:
    """Return the size of the file in a payload, in bytes.

    All sizes in the header are checked here, because the decoder allocates any size that it names.

    Raises:
        EncodingError: the parts are not those that `compressed` writes, or the file is too large.
    """
    try:
        magic, version, kind, segments, file_nbytes, header_nbytes = _START.unpack_from(payload)
        if (magic, version, segments) != (_MAGIC, _VERSION, 1) or kind not in _KINDS or file_nbytes > MAX_LEPTON_NBYTES:
            raise EncodingError("lepton must be a file of one segment, and not too large")
        inflating = zlib.decompressobj()
        packed = memoryview(payload)[_START.size : _START.size + header_nbytes]
        header = inflating.decompress(packed, file_nbytes + _FRAME_NBYTES)  # whose parts are those of the file
        head, jpeg_nbytes = _HEAD.unpack_from(header)
        jpeg = header[_HEAD.size : _HEAD.size + jpeg_nbytes]
        at = _HEAD.size + jpeg_nbytes
        padding, _, begun, row, segment_nbytes = _SEGMENT.unpack_from(header, at)
        at += _SEGMENT.size
        behind, behind_nbytes = _REST.unpack_from(header, at)
    except (struct.error, zlib.error) as error:
        raise EncodingError(f"lepton payload of {len(payload)} bytes must have a whole header: {error}") from error
    named = (head, padding, begun, row, behind) == (b"HDR", b"P0D", b"HH\x01", 0, b"GRB")
    if not named or not inflating.eof or segment_nbytes > file_nbytes or len(header) != at + _REST.size + behind_nbytes:
        raise EncodingError("lepton must have the header of a whole JPEG file")
    if not _picture_fits(b"\xff\xd8" + jpeg):
        raise EncodingError(f"lepton must be of a JPEG file of at most {MAX_LEPTON_PIXELS} px")
    return int(file_nbytes)
