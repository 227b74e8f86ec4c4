"""Cut a rectangle out of a JPEG file without decoding it.

`crop` returns a smaller JPEG whose decoded pixels, cut at an offset, equal the rectangle cut from the decoded
original. It never raises for a file it cannot crop: a `NotCropped` says why, and the whole file is to be used.

The work is done by a C extension. Where that was not built, `available` is False, `reason` says why and what to do,
and every file is refused; nothing else changes. Importing this module loads neither torch nor PIL nor numpy.

Rectangles are in stored coordinates, and the EXIF orientation is dropped unless metadata is kept: a pipeline that turns
pictures by it must not use this without.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple


def remedy(folder: Path) -> str:
    """Instruction that builds the extension, for an error message.

    Args:
        folder: the folder that contains this package: a checkout, or site-packages.
    """
    if not (folder / "setup.py").is_file():
        return "install a C compiler, then run `pip install --force-reinstall --no-deps .` in a checkout"
    return (
        f"run `{sys.executable} setup.py build_ext --inplace` in the checkout {folder}, which this package was "
        "imported from, or begin elsewhere to have what pip has installed"
    )


try:
    import sophon_loader.native._jpegcrop as _jpegcrop
except ImportError as error:
    available: bool = False
    reason: str = f"the C extension is not built ({error}); {remedy(Path(__file__).parents[2])}"
else:
    available = True
    reason = ""

__all__ = ["Cropped", "JpegHeader", "NotCropped", "available", "crop", "image_size", "read_header", "reason", "remedy"]

_MAX_UINT32 = 0xFFFF_FFFF
"""Largest coordinate that the C function takes, px."""


class Cropped(NamedTuple):
    """A JPEG that covers the wanted rectangle.

    Args:
        data: the file.
        dx, dy: where the rectangle begins inside the decoded file, px.

    Example:
        >>> cropped = crop(data, left=100, top=50, width=224, height=224)
        >>> if isinstance(cropped, Cropped):
        ...     part = Image.open(io.BytesIO(cropped.data)).crop(
        ...         (cropped.dx, cropped.dy, cropped.dx + 224, cropped.dy + 224)
        ...     )
    """

    data: bytes
    dx: int
    dy: int


class NotCropped(NamedTuple):
    """The reason why a file was not cropped. Such a file may still decode.

    Args:
        kind: "unsupported", "corrupt", "too_large", or "unavailable" if the extension is missing.
        detail: a few words for a log.
    """

    kind: str
    detail: str


def crop(
    data: bytes | bytearray | memoryview, left: int, top: int, width: int, height: int, keep_metadata: bool = False
) -> Cropped | NotCropped:
    """Cut a rectangle out of a JPEG file.

    Thread-safe; the GIL is released while the file is read.

    Args:
        data: the whole file, contiguous.
        left, top, width, height: the rectangle, px of the stored picture; not empty and inside it.
        keep_metadata: whether the cropped file has all of the file's APPn and COM segments, so that Pillow gives it the
            same `info`. Then a file with over 64 KiB of them, or with an index of several pictures, is not cropped.

    Returns:
        `Cropped`, or `NotCropped` for a file of a kind that is not supported, a damaged one, or one over a size
        limit. Without metadata the cropped file is smaller, or hardly larger when it covers the picture.

    Raises:
        ValueError: the rectangle is empty or not inside the picture.
        MemoryError: no memory for a copy of the file.
    """
    if not available:
        return NotCropped("unavailable", reason)
    rectangle = (left, top, width, height)
    if min(left, top) < 0 or min(width, height) < 1 or max(rectangle) > _MAX_UINT32:
        raise ValueError(f"rectangle must be inside the picture and not empty, got {rectangle}")
    status, detail, jpeg, dx, dy = _jpegcrop.crop(data, left, top, width, height, keep_metadata)
    if jpeg is not None:
        return Cropped(jpeg, dx, dy)
    if status == "bad_rect":
        raise ValueError(f"rectangle must be inside the picture, got {rectangle} for a picture of {image_size(data)}")
    return NotCropped(status, detail)


class JpegHeader(NamedTuple):
    """Facts that a JPEG file states before its first scan.

    Args:
        width, height: px, as stored.
        can_be_cropped: False for kinds that `crop` refuses, such as progressive and CMYK files, and for a truncated
            header. True does not exclude damage after the header, which shows only in a crop.
        components: 1 for grey, 3 for colour, 4 for CMYK; 0 if the header ends before it says so.
    """

    width: int
    height: int
    can_be_cropped: bool
    components: int


def read_header(data: bytes | bytearray | memoryview) -> JpegHeader | None:
    """Read the header of a JPEG file.

    Args:
        data: the file, or as much of its beginning as holds the header.

    Returns:
        The header; None if there is no sound frame header, or the extension is missing.
    """
    if not available:
        return None
    status, _detail, width, height, components = _jpegcrop.size(data)
    return JpegHeader(width, height, status == "ok", components) if width and height else None


def image_size(data: bytes | bytearray | memoryview) -> tuple[int, int] | None:
    """The (width, height) of `read_header`, in px; also of kinds that cannot be cropped."""
    header = read_header(data)
    return None if header is None else (header.width, header.height)
