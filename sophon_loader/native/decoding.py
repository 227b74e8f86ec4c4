"""JPEG files decoded by our own C code to exactly Pillow's pixels, or not at all.

`decode` returns None for files that are unusual, damaged or not supported; the caller then lets Pillow decode the file,
or raise. Nothing here raises for a bad file, and a file that Pillow refuses yields no pixels.

`available` is False if the C extension was not built or does not support the processor's vector unit; then every file
yields None. The same holds if the results on test pictures differ from the installed Pillow's (`checked`).
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.native import checking

try:
    import sophon_loader.native._decode as _decode
except ImportError:
    built: bool = False
    available: bool = False
else:
    built = True
    available = bool(_decode.fast)

__all__ = ["available", "built", "checked", "decode"]

Box = tuple[int, int, int, int]

_MAX_SIDE_PX = 65_500
"""libjpeg's own limit, in px. The C code has the same one."""
DECODE = "decode"
_SIDE_PX = 61
"""Side of the test pictures, px. It is odd, and all sampling factors with the same product give the same number of
MCUs."""


def decode(data: bytes, box: Box | None = None, *, plain: bool = False) -> NDArray[np.uint8] | None:
    """Decode a rectangle of a JPEG file: `Image.open(BytesIO(data)).crop(box)` of Pillow, to the last bit.

    Only the blocks that the rectangle needs are transformed. Thread-safe; the GIL is released.

    Args:
        data: the whole file.
        box: left, upper, right, lower in px of the stored picture, as Pillow's; None for all of it.
        plain: use plain C instead of vector code, `checked` or not. Slow; for tests.

    Returns:
        uint8[height, width, channels], writable, with 3 channels (RGB) or 1 (grey). None for a file that only Pillow
            can judge, and for a box that is empty or not fully inside the picture.

    Raises:
        MemoryError: no memory for the pixels.
    """
    if not (built and (plain or DECODE in checked())):
        return None
    return _decoded(data, box, plain)


def _decoded(data: bytes, box: Box | None, plain: bool = False) -> NDArray[np.uint8] | None:
    """Decode without asking `checked` first; otherwise as `decode`."""
    left, upper, right, lower = box or (0, 0, 0, 0)
    if box is not None and not (0 <= left < right <= _MAX_SIDE_PX and 0 <= upper < lower <= _MAX_SIDE_PX):
        return None
    found = _decode.decode(data, left, upper, right - left, lower - upper, plain)
    if found is None:
        return None
    pixels, *shape = found
    return np.frombuffer(pixels, np.uint8).reshape(shape)


# --- against the installed Pillow -----------------------------------------------------------------------------------


@cache
def checked() -> frozenset[str]:
    """`DECODE` if the test pictures decode to the installed Pillow's pixels, else an empty set.

    Pillow may have been built with another library than libjpeg-turbo. A difference is logged once; if `available` is
    False, nothing is logged.
    """
    return checking.trusted([DECODE] if available else [], _is_pillows, str)


def _is_pillows(_: str) -> bool:
    return all(_decodes(data, box) for data in _files() for box in (None, (9, 11, 50, 39)))


def _decodes(data: bytes, box: Box | None) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        wanted = image.crop(box) if box and min(image.size) == _SIDE_PX else image.copy()
        found = _decoded(data, box if wanted.size != image.size else None)
    return found is not None and found.tobytes() == wanted.tobytes()


def _files() -> Iterator[bytes]:
    """Test files: every chroma sampling that is mixed or repeated, grey, restart markers, many scans, and values that
    overshoot black and white."""
    values = np.random.default_rng(0).integers(-128, 384, (_SIDE_PX, _SIDE_PX, 3)).clip(0, 255).astype(np.uint8)
    noise = Image.fromarray(values)
    smooth = noise.resize((5, 5)).resize(noise.size, Image.Resampling.BICUBIC)
    yield _written(smooth, subsampling="4:4:4", quality=90, optimize=True)
    yield _written(noise, subsampling="4:2:0", quality=80, progressive=True)
    yield _written(smooth.convert("L"), quality=30)
    yield _written(noise.crop((0, 0, 3, 5)), subsampling="4:2:0", quality=95)
    for picture in (noise, smooth):
        across = _written(picture, subsampling="4:2:2", quality=75)
        both = _written(picture, subsampling="4:2:0", quality=60, restart_marker_blocks=3)
        yield from (across, _sampled(across, 0x12), both, _sampled(both, 0x41), _sampled(both, 0x14))


def _written(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", **options)
    return out.getvalue()


def _sampled(data: bytes, factors: int) -> bytes:
    """The file with other luma sampling factors of the same product, which Pillow cannot write.

    Blocks move to other places, which does not matter for a comparison.

    Args:
        data: the file.
        factors: four bits for the horizontal factor, four for the vertical one.
    """
    luma = data.index(b"\xff\xc0") + 11
    return data[:luma] + bytes([factors]) + data[luma + 1 :]
