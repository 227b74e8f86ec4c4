"""Pillow's resize in C of our own, equal to the installed Pillow in every bit, and the end of a chain.

Where the extension was not built, `available` is False and nothing is done: the caller asks Pillow.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import PIL
from numpy.typing import NDArray

try:
    import sophon_loader.native._resample as _resample
except ImportError:  # not built: Pillow resizes
    available: bool = False
else:
    available = True

__all__ = ["available", "finish", "resize"]

Pixels: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[float, float, float, float]

_MAX_VALUES = 1 << 29
"""In what is made here: larger results are Pillow's to make or to refuse."""


_ORDERS = (((13, 0), "DOWN_FIRST_CHEAPER"), ((12, 2), "DOWN_FIRST_TALL"))
"""From which releases of Pillow on a resize may run its vertical pass first, and when (resample.h)."""


def order_of(release: str) -> str:
    """The rule by which a release of Pillow orders the two passes of a resize."""
    major, minor = (int(part) if part.isdecimal() else 0 for part in (release + ".0").split(".")[:2])
    return next((order for since, order in _ORDERS if (major, minor) >= since), "DOWN_FIRST_NEVER")


_ORDER: int = getattr(_resample, order_of(PIL.__version__)) if available else 0


def resize(
    pixels: Pixels,
    size: tuple[int, int],
    box: Box | None = None,
    filter: int = 2,
    out: Pixels | None = None,
    *,
    plain: bool = False,
) -> Pixels | None:
    """What `Image.fromarray(pixels).resize(size, filter, box)` has.

    Thread-safe; the GIL is released meanwhile. Memory besides the result: the weights, and as many rows as one row of
    the result is made of.

    Args:
        pixels: [h, w, 1 or 3], C-contiguous.
        size: (width, height) of the result, px.
        box: (left, top, right, bottom), px of the picture, also fractions; None for all of it.
        filter: number of Pillow's `Resampling`, 0 to 5.
        out: [height, width, channels], C-contiguous, for the result; made if None. Must not overlap the pixels.
        plain: use no instructions but those every processor has. The result is the same; for tests.

    Returns:
        The result; None if Pillow must make it: without the extension, and for sides, ratios and sizes out of bounds.

    Raises:
        ValueError: arguments that do not fit each other, or that Pillow refuses too.
        MemoryError: no memory for the weights or the result.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or not pixels.flags.c_contiguous:
        raise ValueError(f"pixels must be uint8 [h, w, c] and C-contiguous, got {pixels.dtype} {pixels.shape}")
    height, width, channels = pixels.shape
    shape = size[1], size[0], channels
    if out is not None and (out.dtype != np.uint8 or out.shape != shape or not out.flags.c_contiguous):
        raise ValueError(f"out must be uint8 {shape} and C-contiguous, got {out.dtype} {out.shape}")
    if min(shape) < 1:
        raise ValueError(f"size must be at least 1 px each way, got {size}")
    if not available or max(height, width, *size) > _resample.MAX_SIDE or shape[0] * shape[1] * channels > _MAX_VALUES:
        return None
    made = np.empty(shape, np.uint8) if out is None else out
    whole = (0, 0, width, height) if box is None else box
    done = _resample.resize(pixels.data, pixels.shape, made.data, size, whole, filter, _ORDER, plain)
    return made if done else None


def finish(
    pixels: Pixels,
    table: NDArray[Any] | None,
    out: NDArray[Any],
    *,
    left: int = 0,
    top: int = 0,
    fill: bytes | None = None,
    transpose: bool = False,
    flip_horizontal: bool = False,
    flip_vertical: bool = False,
) -> bool:
    """Writes a window of the picture, turned and mirrored and looked up in a table, to memory of any strides.

    The window is as large as `out`, and begins at (left, top) of the picture; what lies outside is filled. It is
    transposed first, if so wanted, and then mirrored.

    Thread-safe; the GIL is released meanwhile.

    Args:
        pixels: [h, w, c], C-contiguous; 1 to 4 channels.
        table: float32 or uint8 [c, 256]: what each value becomes; None for the value itself.
        out: of the table's dtype [c, height, width], with the strides wanted; must not overlap the pixels.
        fill: a value for each channel, which is looked up too; None for zeros.

    Returns:
        Whether it is done: False without the extension.

    Raises:
        ValueError: arguments that do not fit each other.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or not pixels.flags.c_contiguous:
        raise ValueError(f"pixels must be uint8 [h, w, c] and C-contiguous, got {pixels.dtype} {pixels.shape}")
    dtype = np.dtype(np.uint8) if table is None else table.dtype
    if out.dtype != dtype or dtype not in (np.uint8, np.float32):
        raise ValueError(f"out and table must both be uint8 or float32, got {out.dtype} and {dtype}")
    if table is not None and (table.shape != (pixels.shape[2], 256) or not table.flags.c_contiguous):
        raise ValueError(f"table must be [{pixels.shape[2]}, 256] and C-contiguous, got {table.shape}")
    if not available:
        return False
    around = bytes(pixels.shape[2]) if fill is None else fill
    offset, looked = (left, top), None if table is None else table.data
    shape = pixels.shape
    _resample.finish(pixels.data, shape, looked, out, offset, around, flip_horizontal, flip_vertical, transpose)
    return True
