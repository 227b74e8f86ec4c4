"""Pictures decoded by our own C code, to the pixels that Pillow gives, or not at all.

`decode` gives None for whatever is unusual, damaged or not supported; then let Pillow decode the file, or fail at it.
Nothing here raises for a bad file, and no pixels come of one that Pillow refuses.

Where the C extension was not built, or the processor has no vector unit that it knows, `available` is False and every
file gives None.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

try:
    import sophon_loader.native._decode as _decode
except ImportError:
    built: bool = False
    available: bool = False
else:
    built = True
    available = bool(_decode.fast)

__all__ = ["available", "built", "decode"]

_MAX_SIDE_PX = 65_500
"""libjpeg's own limit, which the C code knows too."""


def decode(
    data: bytes, box: tuple[int, int, int, int] | None = None, *, plain: bool = False
) -> NDArray[np.uint8] | None:
    """Decode a rectangle of a JPEG file: `Image.open(BytesIO(data)).crop(box)` of Pillow, to the last bit.

    Only the blocks that the rectangle needs are transformed. Thread-safe; the GIL is released.

    Args:
        data: the whole file.
        box: left, upper, right, lower in px of the stored picture, as Pillow's; None for all of it.
        plain: in plain C instead of vector code, which is slow and for tests.

    Returns:
        uint8[height, width, channels], writable, with 3 channels (RGB) or 1 (grey); None for a file that only Pillow
        can judge, and for a box that is empty or not wholly inside the picture.

    Raises:
        MemoryError: no memory for the pixels.
    """
    if not (available or (plain and built)):
        return None
    left, upper, right, lower = box or (0, 0, 0, 0)
    if box is not None and not (0 <= left < right <= _MAX_SIDE_PX and 0 <= upper < lower <= _MAX_SIDE_PX):
        return None
    found = _decode.decode(data, left, upper, right - left, lower - upper, plain)
    if found is None:
        return None
    pixels, *shape = found
    return np.frombuffer(pixels, np.uint8).reshape(shape)
