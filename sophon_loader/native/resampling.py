"""Pillow's resize in C of our own, equal to the installed Pillow in every bit, and the end of a chain.

Where the extension was not built, `available` is False and nothing is done: the caller asks Pillow. What differs from
the installed Pillow is not done either; each process compares once, on small pictures.
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
"""Whether weights are sure to be Pillow's. Elsewhere a compiler may round a product and a sum at once in Pillow and not
in ours: one of a thousand million weights would differ, and no comparison finds that."""
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
"""What is checked: filters by Pillow's numbers, and `finish`."""
_MEANS = 6, 14, 22
"""Numbers of px for whose means the rounding of 1/n is compared: with fewer bits than Pillow's 22, down to 13, one of
these goes the other way."""
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
"""Shapes, sizes and boxes on which resizes are held to Pillow's."""
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
        filter: number of Pillow's `Resampling`.
        out: [height, width, channels], C-contiguous, for the result; made if None. Must not overlap the pixels.
        plain: use no instructions but those every processor has. The result is the same; for tests.

    Returns:
        The result; None if Pillow must make it: without the extension, for other filters and those that are not
        `checked`, and for sides, ratios and sizes out of bounds.

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
    if FINISH not in checked():
        return False
    window = left, top, bytes(pixels.shape[2]) if fill is None else fill
    _finished(pixels, table, out, window, (flip_horizontal, flip_vertical, transpose))
    return True


def _resized(
    pixels: Pixels, size: tuple[int, int], box: Box | None, filter: int, out: Pixels, plain: bool = False
) -> bool:
    """Whether it is done, trusted or not."""
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
    """The filters whose results are the installed Pillow's, and `FINISH`; empty without the extension. What is left out
    is not used, and the log says so once; filters are left out in silence where the processor is no x86-64."""
    if not available:
        return frozenset()
    return checking.trusted(_NAMES if EXACT else [FINISH], _is_pillows, lambda name: _NAMES[name])


def differing() -> list[int | str]:
    """The filters, and `FINISH`, whose results are not the installed Pillow's."""
    return checking.differing(_NAMES, _is_pillows)


def _is_pillows(name: int | str) -> bool:
    return _finishes() if isinstance(name, str) else _filters(name)


def _filters(filter: int) -> bool:
    return all(_resizes(*case, filter) for case in _RESIZES)


def _picture(height: int, width: int, channels: int) -> Pixels:
    """Random values, a half of them black or white, where filters overshoot."""
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
