"""What an image file says before its pixels, read without Pillow in a few microseconds.

`header_of` reads JPEG, PNG, WebP and GIF, and gives what `PIL.Image.open` gives. Whatever is unusual or damaged is left
to Pillow: the answer is None. It checks neither the pixels, nor most checksums, nor Pillow's limit of pixels
(`Image.MAX_IMAGE_PIXELS`).
"""

from __future__ import annotations

import struct

from sophon_loader.kinds.image.gif_header import read_gif
from sophon_loader.kinds.image.header_fields import PACKED_NBYTES, Header, UnusualFile, pack, unpack
from sophon_loader.kinds.image.jpeg_header import read_jpeg
from sophon_loader.kinds.image.png_header import read_png
from sophon_loader.kinds.image.webp_header import read_webp

__all__ = ["PACKED_NBYTES", "Header", "begins_like_a_picture", "header_of", "pack", "unpack"]

_READERS = ((b"\xff\xd8\xff", read_jpeg), (b"\x89PNG\r\n\x1a\n", read_png), (b"RIFF", read_webp), (b"GIF8", read_gif))
_STARTS = tuple(start for start, _ in _READERS)


def header_of(data: bytes) -> Header | None:
    """Read the header of an image file.

    Args:
        data: the file, or as much of its beginning as holds the header. A GIF must be whole, and a WebP with metadata.

    Returns:
        The header; None where Pillow must be asked: another format, damage, a header that goes on behind `data`, or a
        kind too rare to be worth a parser. Never an error, and soon for any bytes.
    """
    try:
        for start, read in _READERS:
            if data.startswith(start):
                header = read(data)
                return header if header.width and header.height else None
    except (UnusualFile, IndexError, struct.error):  # the last two: behind the end of `data`
        pass
    return None


def begins_like_a_picture(data: bytes) -> bool:
    """Whether a file is of a format that `header_of` reads.

    Args:
        data: its beginning, of 12 bytes at least.
    """
    return data.startswith(_STARTS) and (data[:4] != b"RIFF" or data[8:12] == b"WEBP")
