"""Pillow's resize in our C code, bit-identical to the installed Pillow, and the last steps of a chain.

`available` is False if the extension was not built; then nothing is done here and the caller asks Pillow. The same
holds for filters whose results differ from the installed Pillow's. Each process compares once, on small pictures.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

from sophon_loader.native import checking

try:
    import sophon_loader.native._resample as _resample
except ImportError:  # not built: Pillow resizes
    available: bool = False
else:
    available = True

__all__ = ["available", "checked", "finish", "resize"]

Pixels: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[float, float, float, float]

Window: TypeAlias = tuple[int, int, bytes]
"""Left, top and fill."""

EXACT = platform.machine().lower() in ("x86_64", "amd64")
"""True if the weights are certain to be Pillow's. On other machines a compiler may fuse a multiplication and an
addition in Pillow but not here: about one weight in 10^9 would differ, and no comparison finds that."""
FINISH = "finish"
_NAMES: dict[int | str, str] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
    4: "box",
    5: "hamming",
    FINISH: FINISH,
}
"""Names of what is compared: filters, by Pillow's numbers, and `finish`."""
_MEANS = 6, 14, 22
"""Numbers of px over which means are compared, for the rounding of 1/n. If it has 13 to 21 bits instead of Pillow's 22,
at least one of these means is rounded the other way."""
_RESIZES: tuple[tuple[tuple[int, int, int], tuple[int, int], Box | None], ...] = (
    ((48, 61, 3), (23, 21), None),
    ((48, 61, 1), (90, 40), None),
    ((48, 61, 3), (61, 33), (0, 3.25, 61, 44.5)),
    ((48, 61, 3), (37, 48), (2.7, 0, 60.1, 48)),
    # Which pass goes first, by each of the rules (resample.h).
    ((70, 40, 3), (30, 50), None),
    ((70, 40, 3), (30, 49), None),
    ((201, 2, 3), (1, 200), None),
    ((201, 2, 1), (3, 20), None),
    # The mean of n px lies between two values once in n times, and then goes by the rounding of 1/n. pillow-simd has
    # fewer bits for it.
    *(((12, 8 * n, 3), (8, 12), None) for n in _MEANS),
    *(((8 * n, 12, 3), (12, 8), None) for n in _MEANS),
)
"""Shapes, sizes and boxes of the resizes that are compared with Pillow's."""
_MAX_VALUES = 1 << 29
"""Maximum number of values of a result. Larger results are left to Pillow, which makes or refuses them."""


_ORDERS = (((13, 0), "DOWN_FIRST_CHEAPER"), ((12, 2), "DOWN_FIRST_TALL"))
"""First releases of Pillow, (major, minor), whose resize may run its vertical pass first, each with its rule
(resample.h)."""


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
    """Resize a picture as `Image.fromarray(pixels).resize(size, filter, box)` does.

    Thread-safe; the GIL is released meanwhile. Memory in addition to the result: the weights, and as many rows as one
    row of the result is computed from.

    Args:
        pixels: [h, w, 1 or 3], C-contiguous.
        size: (width, height) of the result, px.
        box: (left, top, right, bottom), px of the picture, may be fractions; None for all of it.
        filter: number of Pillow's `Resampling`.
        out: [height, width, channels], C-contiguous, for the result; allocated if None. Must not overlap the pixels.
        plain: use only instructions that every processor has. The result is the same; for tests.

    Returns:
        The result. None if Pillow must make it: the extension is missing, the filter is not in `checked`, or sides,
            ratios or sizes are out of bounds.

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
    if (
        filter not in checked()
        or max(height, width, *size) > _resample.MAX_SIDE
        or shape[0] * shape[1] * channels > _MAX_VALUES
    ):
        return None
    made = np.empty(shape, np.uint8) if out is None else out
    return made if _resized(pixels, size, box, filter, made, plain) else None


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
    """Write a window of the picture to `out`: transposed, mirrored and looked up in a table.

    The window is as large as `out` and begins at (left, top) of the picture. Values outside the picture are `fill`. The
    window is transposed before it is mirrored. Thread-safe; the GIL is released meanwhile.

    Args:
        pixels: [h, w, c], C-contiguous; 1 to 4 channels.
        table: float32 or uint8 [c, 256], the new value for each value; None to keep values.
        out: [c, height, width] of the table's dtype (uint8 without a table), with any strides; must not overlap the
            pixels.
        left, top: corner of the window, px; may be negative.
        fill: a value for each channel, which is looked up as well; None for zeros.
        transpose, flip_horizontal, flip_vertical: how the window is turned.

    Returns:
        True if it was written; False if the extension is missing or differs from the installed Pillow.

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
    if FINISH not in checked():
        return False
    window = left, top, bytes(pixels.shape[2]) if fill is None else fill
    _finished(pixels, table, out, window, (flip_horizontal, flip_vertical, transpose))
    return True


def _resized(
    pixels: Pixels, size: tuple[int, int], box: Box | None, filter: int, out: Pixels, plain: bool = False
) -> bool:
    """Resize into `out` without asking `checked` first; True if it was done."""
    whole = (0, 0, pixels.shape[1], pixels.shape[0]) if box is None else box
    return _resample.resize(pixels.data, pixels.shape, out.data, size, whole, filter, _ORDER, plain)


def _finished(
    pixels: Pixels, table: NDArray[Any] | None, out: NDArray[Any], window: Window, turned: tuple[bool, bool, bool]
) -> None:
    left, top, fill = window
    items = None if table is None else table.data
    _resample.finish(pixels.data, pixels.shape, items, out, (left, top), fill, *turned)


# --- against the installed Pillow -----------------------------------------------------------------------------------


@cache
def checked() -> frozenset[int | str]:
    """Filters (by Pillow's numbers) and `FINISH` that are in use; empty without the extension.

    Parts that differ from the installed Pillow are left out, and logged once. On processors other than x86-64 filters
    are left out without a log line.
    """
    if not available:
        return frozenset()
    return checking.trusted(_NAMES if EXACT else [FINISH], _is_pillows, lambda name: _NAMES[name])


def differing() -> list[int | str]:
    """Filters, and `FINISH`, whose results differ from the installed Pillow's."""
    return checking.differing(_NAMES, _is_pillows)


def _is_pillows(name: int | str) -> bool:
    return _finishes() if isinstance(name, str) else _filters(name)


def _filters(filter: int) -> bool:
    return all(_resizes(*case, filter) for case in _RESIZES)


def _picture(height: int, width: int, channels: int) -> Pixels:
    """Random pixels, half of them black or white, where filters overshoot."""
    pixels = np.random.default_rng(0).integers(-128, 384, (height, width, channels))
    return pixels.clip(0, 255).astype(np.uint8)


def _resizes(shape: tuple[int, int, int], size: tuple[int, int], box: Box | None, filter: int) -> bool:
    pixels = _picture(*shape)
    made = np.empty((size[1], size[0], shape[2]), np.uint8)
    wanted = _image(pixels).resize(size, filter, box)
    return _resized(pixels, size, box, filter, made) and wanted.tobytes() == made.tobytes()


def _finishes() -> bool:
    pixels = _picture(13, 19, 3)
    table = np.random.default_rng(1).random((3, 256), np.float32)
    out, turned = np.empty((3, 23, 17), np.float32), (True, False, True)
    image = _image(pixels).crop((-2, 3, 21, 20)).transpose(Image.Transpose.TRANSPOSE)
    values = np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    _finished(pixels, table, out, (-2, 3, bytes(3)), turned)
    return np.array_equal(out, np.stack([table[c][values[:, :, c]] for c in range(3)]))


def _image(pixels: Pixels) -> Image.Image:
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
