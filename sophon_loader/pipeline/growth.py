"""Upper bounds of the image sizes that ops make, known before they run. By them an agent refuses ops for others.

For a transform that can enlarge an image, a function of the transform and its image's size in px returns the largest
size of the result. Functions for torchvision's transforms are here, by class name; those for timm's are in
`timm_ops.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Size = tuple[float, float]
"""Width and height in px."""
Growth = Callable[[float, float], Size]
"""Maps an image's width and height to upper bounds of the result's."""
GrowthOf = Callable[[Any, float, float], Size]
"""Like `Growth`, with the transform as first argument."""


def to_size(transform: Any, width: float, height: float) -> Size:
    """Return the bound of transforms that always end in `size`.

    Args:
        transform: has `size`, one number or (height, width).
        width, height: size of its image, px.
    """
    size = transform.size
    rows, columns = (size, size) if isinstance(size, (int, float)) else (size[0], size[-1])
    return columns, rows


def of_any_order(steps: Sequence[Growth], width: float, height: float) -> Size:
    """Return the bound of a container: the largest width and height after any of its steps.

    Args:
        steps: bounds of the steps.
        width, height: size of its image, px.
    """
    most_width, most_height = width, height
    for step in steps:
        width, height = step(width, height)
        most_width, most_height = max(most_width, width), max(most_height, height)
    return most_width, most_height


def scaled(width: float, height: float, shorter: float, longest: float | None) -> Size:
    """Return the size of an image after scaling.

    Args:
        width, height: size of the image, px.
        shorter: new length of its shorter side, px.
        longest: maximum length of its longer side, px; None for no limit.
    """
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
    """Return the px added to width and height."""
    if isinstance(padding, (int, float)):
        return 2 * padding, 2 * padding
    left, top, right, bottom = {1: 4, 2: 2, 4: 1}[len(padding)] * list(padding)
    return left + right, top + bottom


def _pad(transform: Any, width: float, height: float) -> Size:
    wider, higher = _padding(transform.padding)
    return width + max(wider, 0), height + max(higher, 0)


def _random_crop(transform: Any, width: float, height: float) -> Size:
    # Pads first, at both sides by as much as the crop lacks, and then crops.
    columns, rows = to_size(transform, width, height)
    if transform.padding is not None:
        wider, higher = _padding(transform.padding)
        sides = max(wider, higher)  # the two modules store the four numbers in different orders
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
"""Bounds of torchvision's transforms, by class name."""
