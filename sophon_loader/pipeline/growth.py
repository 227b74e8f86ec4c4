"""How large ops make images, known before they run: what an agent does not run for others is told by that.

A function of a transform and the size of its image, px, gives the size at most of what it makes, for transforms that
can make an image larger. Those of torchvision are here by the name of the class, those of timm in `timm_ops.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Size = tuple[float, float]
"""Width and height, px."""
Growth = Callable[[float, float], Size]
"""Width and height of an image -> at most those of what is made of it."""
GrowthOf = Callable[[Any, float, float], Size]
"""The same, of a transform that is given first."""


def to_size(transform: Any, width: float, height: float) -> Size:
    """Of transforms that end in `size`, one number or (height, width), whatever they are given."""
    size = transform.size
    rows, columns = (size, size) if isinstance(size, (int, float)) else (size[0], size[-1])
    return columns, rows


def of_any_order(steps: Sequence[Growth], width: float, height: float) -> Size:
    """Of a container: the largest width and height of any of its steps, one after the other."""
    most_width, most_height = width, height
    for step in steps:
        width, height = step(width, height)
        most_width, most_height = max(most_width, width), max(most_height, height)
    return most_width, most_height


def scaled(width: float, height: float, shorter: float, longest: float | None) -> Size:
    """An image whose shorter side is to have so many px, and its longer side no more than `longest`."""
    factor = shorter / min(width, height)
    if longest is not None:
        factor = min(factor, longest / max(width, height))
    return width * factor, height * factor


def _resize(transform: Any, width: float, height: float) -> Size:
    size, longest = transform.size, transform.max_size
    if size is None:
        return scaled(width, height, math.inf, longest)
    if isinstance(size, (int, float)):
        return scaled(width, height, size, longest)
    return scaled(width, height, size[0], longest) if len(size) == 1 else (size[1], size[0])


def _padding(padding: Any) -> Size:
    """What is added to width and height."""
    if isinstance(padding, (int, float)):
        return 2 * padding, 2 * padding
    left, top, right, bottom = {1: 4, 2: 2, 4: 1}[len(padding)] * list(padding)
    return left + right, top + bottom


def _pad(transform: Any, width: float, height: float) -> Size:
    wider, higher = _padding(transform.padding)
    return width + max(wider, 0), height + max(higher, 0)


def _random_crop(transform: Any, width: float, height: float) -> Size:
    # Pads, by half of that at either side where it is needed, and crops then.
    columns, rows = to_size(transform, width, height)
    if transform.padding is not None:
        wider, higher = _padding(transform.padding)
        sides = max(wider, higher)  # the two modules keep the four numbers in different orders
        width, height = width + 2 * sides, height + 2 * sides
    if transform.pad_if_needed:
        return max(width, 2 * columns), max(height, 2 * rows)
    return max(width, columns), max(height, rows)


def _zoom_out(transform: Any, width: float, height: float) -> Size:
    most = max(*transform.side_range, 1)
    return width * most, height * most


def _scale_jitter(transform: Any, width: float, height: float) -> Size:
    most, sides = max(transform.scale_range), transform.target_size
    factor = min(sides[1] / height, sides[0] / width) * most
    return width * factor, height * factor


def _shortest_size(transform: Any, width: float, height: float) -> Size:
    return scaled(width, height, max(transform.min_size), transform.max_size)


def _random_resize(transform: Any, width: float, height: float) -> Size:
    return scaled(width, height, max(transform.min_size, transform.max_size), None)


def _rotation(transform: Any, width: float, height: float) -> Size:
    return (width + height, width + height) if transform.expand else (width, height)


GROWTHS: dict[str, GrowthOf] = {
    "CenterCrop": to_size,
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "RandomResize": _random_resize,
    "RandomResizedCrop": to_size,
    "RandomRotation": _rotation,
    "RandomShortestSize": _shortest_size,
    "RandomZoomOut": _zoom_out,
    "Resize": _resize,
    "ScaleJitter": _scale_jitter,
}
"""Of torchvision's transforms, by the name of the class."""
