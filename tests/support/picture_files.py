"""Small files of every kind that a picture dataset may hold, sound and damaged, by name."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

from PIL import Image, PngImagePlugin

from tests.support.pictures import picture


def _saved(image: Image.Image, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def _jpeg(mode: str = "RGB", **options: Any) -> Callable[[Image.Image], bytes]:
    return lambda image: _saved(image.convert(mode), "JPEG", **{"quality": 85, **options})


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    exif[0x010F] = "a camera"
    return exif


def _png(mode: str, **options: Any) -> Callable[[Image.Image], bytes]:
    return lambda image: _saved(image.convert(mode), "PNG", compress_level=1, **options)


def _with_alpha(image: Image.Image, mode: str = "RGBA") -> Image.Image:
    image = image.convert(mode)
    image.putalpha(image.getchannel(0).rotate(180))
    return image


def _scan(data: bytes) -> int:
    """Where the coded px of a JPEG begin, nearly."""
    return data.rindex(b"\xff\xda") + 12


def _scan_damaged(image: Image.Image) -> bytes:
    data = bytearray(_jpeg(subsampling="4:2:0")(image))
    for place in range(_scan(bytes(data)) + 40, len(data) - 10, 97):
        data[place] ^= 0x5A
    return bytes(data)


def _without_end(data: bytes, share: float) -> bytes:
    begin = _scan(data) if data[:2] == b"\xff\xd8" else 60
    return data[: begin + round((len(data) - begin) * share)]


def _zeros_in_scan(image: Image.Image) -> bytes:
    data = bytearray(_jpeg(restart_marker_blocks=2)(image))
    place = (_scan(bytes(data)) + len(data)) // 2
    data[place : place + 30] = bytes(30)
    return bytes(data)


def _frame_header(image: Image.Image, place: int, value: int, **options: Any) -> bytes:
    """A JPEG with another byte in its frame header."""
    data = bytearray(_jpeg(**options)(image))
    data[data.index(b"\xff\xc0") + place] = value
    return bytes(data)


def _texts() -> PngImagePlugin.PngInfo:
    texts = PngImagePlugin.PngInfo()
    texts.add_text("Title", "before the px")
    texts.add(b"tEXt", b"Comment\0behind them", after_idat=True)
    return texts


KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg 4:4:4": _jpeg(subsampling="4:4:4"),
    "jpeg 4:2:2": _jpeg(subsampling="4:2:2"),
    "jpeg 4:2:0": _jpeg(subsampling="4:2:0", quality=60),
    "jpeg L": _jpeg("L"),
    "jpeg CMYK": _jpeg("CMYK"),
    "jpeg progressive": _jpeg(progressive=True),
    "jpeg restarts": _jpeg(restart_marker_blocks=3),
    "jpeg optimized": _jpeg(optimize=True, quality=30, dpi=(72, 96), comment=b"a comment", icc_profile=b"\0" * 140),
    "jpeg turned": lambda image: _jpeg(exif=_exif(6))(image),
    "jpeg turned, L": lambda image: _jpeg("L", exif=_exif(5))(image),
    "jpeg exif cut short": lambda image: _jpeg(exif=_exif(3).tobytes()[:-9])(image),
    "jpeg several": lambda image: _saved(image, "MPO", save_all=True, append_images=[image.rotate(90)]),
    "jpeg scan damaged": _scan_damaged,
    "jpeg scan with zeros": _zeros_in_scan,
    "jpeg cut short": lambda image: _without_end(_jpeg()(image), 0.4),
    "jpeg cut short at its end": lambda image: _jpeg()(image)[:-2],
    "jpeg cut short, progressive": lambda image: _without_end(_jpeg(progressive=True)(image), 0.5),
    "jpeg cut short in its header": lambda image: _jpeg()(image)[:200],
    "jpeg of 12 bits": lambda image: _frame_header(image, 4, 12),
    "jpeg higher than it says": lambda image: _frame_header(image, 6, max(1, image.height % 256 // 2)),
    "jpeg lower than it says": lambda image: _frame_header(image, 6, 255),
    "jpeg with more behind": lambda image: _jpeg()(image) + b"\xff\xd8 and more" * 5,
    "png RGB": _png("RGB"),
    "png RGBA": lambda image: _saved(_with_alpha(image), "PNG"),
    "png L": _png("L"),
    "png LA": lambda image: _saved(_with_alpha(image.convert("L"), "LA"), "PNG"),
    "png P": _png("P"),
    "png P, transparent": _png("P", transparency=3),
    "png RGB, transparent": _png("RGB", transparency=(10, 20, 30)),
    "png 1": _png("1"),
    "png I;16": lambda image: _saved(image.convert("I").convert("I;16"), "PNG"),
    "png with texts": lambda image: _saved(image, "PNG", pnginfo=_texts(), exif=_exif(8)),
    "png cut short": lambda image: _without_end(_png("RGB")(image), 0.5),
    "png damaged": lambda image: _png("RGB")(image)[:-20] + b"\1" * 20,
    "webp": lambda image: _saved(image, "WEBP", quality=70, method=0),
    "webp lossless": lambda image: _saved(image, "WEBP", lossless=True, method=0),
    "webp alpha": lambda image: _saved(_with_alpha(image), "WEBP", method=0),
    "webp cut short": lambda image: _saved(image, "WEBP", method=0)[:-30],
    "gif": lambda image: _saved(image, "GIF"),
    "gif several": lambda image: _saved(image, "GIF", save_all=True, append_images=[image.rotate(90)], transparency=2),
    "tiff": lambda image: _saved(image, "TIFF", exif=_exif(6)),
    "tiff L": lambda image: _saved(image.convert("L"), "TIFF", compression="tiff_lzw"),
    "tiff CMYK": lambda image: _saved(image.convert("CMYK"), "TIFF"),
    "tiff F": lambda image: _saved(image.convert("F"), "TIFF"),
    "bmp": lambda image: _saved(image, "BMP"),
    "ppm": lambda image: _saved(image, "PPM"),
    "no picture": lambda image: b"no picture at all, but some text " * 4,
    "empty": lambda image: b"",
}
"""Each makes a file of an image."""
_UNSOUND = ("short", "damaged", "zeros", "says", "12 bits", "no picture", "empty")
SOUND = tuple(name for name in KINDS if not any(word in name for word in _UNSOUND))
"""Those that Pillow reads without an error or a warning."""


@cache
def file_of(kind: str, width: int = 75, height: int = 58, seed: int = 0) -> bytes:
    """A file of a kind.

    Args:
        kind: of `KINDS`.
        width, height: of its picture, px.
        seed: of what is on it.
    """
    return KINDS[kind](picture(width, height, seed))
