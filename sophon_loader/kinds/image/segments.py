"""Where a picture's program can be cut, and which rectangle of the picture it reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sophon_loader.kinds.image.part import Region
from sophon_loader.kinds.image.primitives import SUPPORTS, Shape, output
from sophon_loader.programs.program import Step

SEGMENTS = ("file", "decoded", "shrunk", "8-bit", "table")
"""The file; the picture; behind the last crop, reduction or resize of the leading run; behind the last step; behind the
table."""
_SHRINKING = ("crop", "reduce", "resize")
_LEADING = frozenset({*_SHRINKING, "transpose", "convert", "point"})


def leading(steps: Sequence[Step]) -> int:
    """How many steps come before the first whose output px depends on px that lie elsewhere, or in no simple way."""
    return next((position for position, step in enumerate(steps) if step[0] not in _LEADING), len(steps))


def shrunk(steps: Sequence[Step]) -> int:
    """How many steps make the segment `shrunk`; 0 where nothing shrinks."""
    shrinking = [position for position in range(leading(steps)) if steps[position][0] in _SHRINKING]
    return shrinking[-1] + 1 if shrinking else 0


def steps_until(segment: str, steps: Sequence[Step]) -> int:
    """How many steps have run at a segment from `decoded` on; behind the last one for the table, which is no step."""
    return {"decoded": 0, "shrunk": shrunk(steps)}.get(segment, len(steps))


def shape_at(segment: str, steps: Sequence[Step], picture: Shape) -> Shape:
    """Return the shape of the image at a segment from `decoded` on.

    Args:
        segment: see `SEGMENTS`.
        steps: that suit the picture.
        picture: decoded.
    """
    for step in steps[: steps_until(segment, steps)]:
        picture = output(step, picture) or picture
    return picture


def read_by(steps: Sequence[Step], picture: Shape) -> Region:
    """The rectangle of a picture that some steps read: the px outside may be anything.

    Args:
        steps: that suit the picture.
        picture: decoded.
    """
    if len(steps) > 1 and steps[0][0] == "crop" and steps[1][0] == "resize":  # nearly always: no need to look further
        return _within(Region(0, 0, steps[0][3] - steps[0][1], steps[0][4] - steps[0][2]), steps[0], picture)
    shapes = [picture]
    for step in steps[: leading(steps)]:
        made = output(step, shapes[-1])
        assert made is not None, step
        shapes.append(made)
    last = shapes.pop()
    region = Region(0, 0, last.width, last.height)
    for step, image in zip(reversed(steps[: len(shapes)]), reversed(shapes), strict=True):
        region = _within(region, step, image)
    return region


def _within(region: Region, step: Step, image: Shape) -> Region:
    """The rectangle of a step's input that a rectangle of its output is made of."""
    left, top, right, bottom = region.left, region.top, region.left + region.width, region.top + region.height
    if step[0] == "crop":
        left, top, right, bottom = left + step[1], top + step[2], right + step[1], bottom + step[2]
    elif step[0] == "transpose":
        left, top, right, bottom = turned_back(step[1], (left, top, right, bottom), image)
    elif step[0] == "reduce":
        left, top, right, bottom = left * step[1], top * step[2], right * step[1], bottom * step[2]
    elif step[0] == "resize":
        _, width, height, resample, box, gap = step
        if gap is not None:
            return Region(0, 0, image.width, image.height)
        x0, y0, x1, y1 = (0, 0, image.width, image.height) if box is None else box
        left, right = _resampled(left, right, x0, (x1 - x0) / width, resample)
        top, bottom = _resampled(top, bottom, y0, (y1 - y0) / height, resample)
    left, top = min(max(left, 0), image.width - 1), min(max(top, 0), image.height - 1)
    right, bottom = max(min(right, image.width), left + 1), max(min(bottom, image.height), top + 1)
    return Region(left, top, right - left, bottom - top)


def _resampled(first: int, last: int, begin: float, scale: float, resample: int) -> tuple[int, int]:
    reach = SUPPORTS[resample] * max(scale, 1.0) + 1  # and one more, whichever way Pillow rounds
    return math.floor(begin + first * scale - reach), math.ceil(begin + last * scale + reach)


def turned_back(method: int, box: tuple[int, int, int, int], image: Shape) -> tuple[int, int, int, int]:
    """Where a rectangle of a transposed image lies in the image before.

    Args:
        method: Pillow's number of it.
        box: (left, top, right, bottom) of the transposed image, px.
        image: before it is transposed.
    """
    left, top, right, bottom = box
    if method in (2, 4, 5, 6):  # a column of the output is a row of the input
        left, top, right, bottom = top, left, bottom, right
    if method in (0, 2, 3, 6):  # counted from the other side
        left, right = image.width - right, image.width - left
    if method in (1, 3, 4, 6):
        top, bottom = image.height - bottom, image.height - top
    return left, top, right, bottom


def turned(method: int, box: tuple[int, int, int, int], image: Shape) -> tuple[int, int, int, int]:
    """Where a rectangle of an image lies once that is transposed; the arguments are those of `turned_back`."""
    left, top, right, bottom = box
    if method in (0, 2, 3, 6):
        left, right = image.width - right, image.width - left
    if method in (1, 3, 4, 6):
        top, bottom = image.height - bottom, image.height - top
    if method in (2, 4, 5, 6):
        left, top, right, bottom = top, left, bottom, right
    return left, top, right, bottom
