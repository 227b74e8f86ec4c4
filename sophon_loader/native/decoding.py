"""Pictures decoded by our own C code, to the pixels that Pillow gives, or not at all.

`decode` gives None for whatever is unusual, damaged or not supported; then let Pillow decode the file, or fail at it.
Nothing here raises for a bad file, and no pixels come of one that Pillow refuses.

Where the C extension was not built, or the processor has no vector unit that it knows, `available` is False and every
file gives None. So it is where pictures made for the purpose come out unlike the installed Pillow's (`checked`).
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
"""libjpeg's own limit, which the C code knows too."""
DECODE = "decode"
_SIDE_PX = 61
"""Of a checked picture: odd, and of the same number of MCUs for all ways of sampling chroma with as many samples."""


def decode(data: bytes, box: Box | None = None, *, plain: bool = False) -> NDArray[np.uint8] | None:
    """Decode a rectangle of a JPEG file: `Image.open(BytesIO(data)).crop(box)` of Pillow, to the last bit.

    Only the blocks that the rectangle needs are transformed. Thread-safe; the GIL is released.

    Args:
        data: the whole file.
        box: left, upper, right, lower in px of the stored picture, as Pillow's; None for all of it.
        plain: in plain C instead of vector code, `checked` or not, which is slow and for tests.

    Returns:
        uint8[height, width, channels], writable, with 3 channels (RGB) or 1 (grey); None for a file that only Pillow
        can judge, and for a box that is empty or not wholly inside the picture.

    Raises:
        MemoryError: no memory for the pixels.
    """
    if not (built and (plain or DECODE in checked())):
        return None
    return _decoded(data, box, plain)


def _decoded(data: bytes, box: Box | None, plain: bool = False) -> NDArray[np.uint8] | None:
    """As `decode`, trusted or not."""
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
    """`DECODE` if pictures come out as the installed Pillow's, whose library may be another than libjpeg-turbo. If not,
    the log says so once. Empty, in silence, where `available` is False."""
    return checking.trusted([DECODE] if available else [], _is_pillows, str)


def _is_pillows(_: str) -> bool:
    return all(_decodes(data, box) for data in _files() for box in (None, (9, 11, 50, 39)))


def _decodes(data: bytes, box: Box | None) -> bool:
    with Image.open(io.BytesIO(data)) as image:
        wanted = image.crop(box) if box and min(image.size) == _SIDE_PX else image.copy()
        found = _decoded(data, box if wanted.size != image.size else None)
    return found is not None and found.tobytes() == wanted.tobytes()


def _files() -> Iterator[bytes]:
    """Every way of sampling chroma that is mixed or repeated, grey, restarts, many scans, and values beyond black and
    white."""
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
    """The file with other sampling factors of luma, four bits across and four down, of the same product. Pillow writes
    no such file. Blocks come to lie elsewhere, which is no matter."""
    luma = data.index(b"\xff\xc0") + 11
    return data[:luma] + bytes([factors]) + data[luma + 1 :]
