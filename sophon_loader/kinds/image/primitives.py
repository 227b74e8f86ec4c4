"""The steps of a picture's program: what each takes, the size of what it makes, its work, and how Pillow runs it.

The table is closed: what is not here has no program, and is done by Pillow on an image. Each step is checked, with its
output's size and its work, before anything of it runs. Numbers are px of the step's own input unless said otherwise.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from PIL import Image, ImageFilter

from sophon_loader.errors import ProgramRefused
from sophon_loader.programs.program import Cost, Limits, Step, finite_numbers, whole_numbers

BANDS = {"L": 1, "LA": 2, "La": 2, "RGB": 3, "YCbCr": 3, "HSV": 3, "RGBA": 4, "RGBa": 4, "CMYK": 4}
"""Modes of 8 bits a band that programs know, and how many bands they have."""
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
"""Pillow's resampling filters, by its own numbers."""
SUPPORTS = {NEAREST: 0.5, BOX: 0.5, BILINEAR: 1.0, HAMMING: 1.0, BICUBIC: 2.0, LANCZOS: 3.0}
"""How far each filter reaches to either side, output px (src/libImaging/Resample.c in Pillow)."""
AFFINE, EXTENT, PERSPECTIVE, QUAD = range(4)
"""Pillow's transform methods, by its own numbers."""
TRANSFORM_NUMBERS = {AFFINE: 6, EXTENT: 4, PERSPECTIVE: 8, QUAD: 8}
"""How many numbers each takes."""
_MAX_SIDE = 1 << 20
_MAX_NUMBER = 1e9
_MAX_RADIUS = 1000.0
"""Of a blur, px: box blurs take time that does not depend on it, but ever more memory for a line."""
_MAX_WINDOW = 15
"""Side of a rank or mode filter's window, px: their work goes by its area."""
_MAX_BLOCK = 1 << 24
"""Px that one px may be made of by a reduction: their sum has 32 bits in Pillow."""


class Shape(NamedTuple):
    """An image's size, px, and its mode."""

    width: int
    height: int
    mode: str

    @property
    def px(self) -> int:
        """Of the whole image."""
        return self.width * self.height

    @property
    def nbytes(self) -> int:
        """In Pillow's memory: 1 or 4 bytes a px, lines of whole words, and a pointer to each."""
        line = self.width * (1 if BANDS.get(self.mode, 4) == 1 else 4)
        return self.height * (line + -line % 4 + 8)


@dataclass(frozen=True)
class Primitive:
    """One kind of step.

    Args:
        check: (numbers, input) -> output, or None if the numbers are out of range or do not suit the input.
        work: (numbers, input, output) -> multiplications, or moves of a value.
        run: (image, numbers) -> image, by Pillow.
        fixed: how many of the numbers, from the first, are the same for every sample; -1 for a step that only some
            samples have.
        spare: (numbers, input, output) -> bytes that are needed besides the output.
    """

    check: Callable[[Sequence[Any], Shape], Shape | None]
    work: Callable[[Sequence[Any], Shape, Shape], float]
    run: Callable[[Image.Image, Sequence[Any]], Image.Image]
    fixed: int = 0
    spare: Callable[[Sequence[Any], Shape, Shape], float] = lambda numbers, before, after: 0


def _moves(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    return after.px * BANDS[after.mode]


# Work is counted in multiplications of a resize, a third to a half of a nanosecond each. Numbers below that are larger
# than what a step computes are its CPU seconds in those, as measured with Pillow 12: a limit of work is one of time.


# --- crop (left, top, right, bottom): beyond the image there are zeros ----------------------------------------------


def _check_crop(box: Sequence[Any], image: Shape) -> Shape | None:
    if len(box) != 4 or not whole_numbers(box, -_MAX_SIDE, _MAX_SIDE):
        return None
    left, top, right, bottom = box
    return Shape(right - left, bottom - top, image.mode) if right > left and bottom > top else None


# --- resize (width, height, filter, box, reducing gap): box is (left, top, right, bottom) or None, gap may be None --


def _check_resize(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if len(numbers) != 5:
        return None
    width, height, resample, box, gap = numbers
    if not whole_numbers((width, height), 1, _MAX_SIDE) or type(resample) is not int or resample not in SUPPORTS:
        return None
    if image.mode in ("LA", "RGBA") and resample != NEAREST:  # these are two steps more
        return None
    if box is not None:
        if not isinstance(box, (tuple, list)) or len(box) != 4 or not finite_numbers(box, _MAX_SIDE):
            return None
        left, top, right, bottom = box
        if not (0 <= left < right <= image.width and 0 <= top < bottom <= image.height):
            return None
        if (right - left) * _MAX_SIDE < image.width or (bottom - top) * _MAX_SIDE < image.height:
            return None  # next to nothing: scales out of all proportion
    if gap is not None and not (finite_numbers((gap,), _MAX_NUMBER) and gap >= 1):
        return None
    return Shape(width, height, image.mode)


def taps(size_in: float, size_out: int, resample: int) -> int:
    """How many input px along one side each output px is made of."""
    return math.ceil(SUPPORTS[resample] * max(1.0, size_in / size_out)) * 2 + 1


def _resize_passes(numbers: Sequence[Any], before: Shape, after: Shape) -> tuple[int, int, int]:
    """Taps of the first pass, along lines; of the second; and how many lines the first makes for it: those of the box,
    and those around it that its outermost px are made of."""
    box = numbers[3]
    wide, high = before[:2] if box is None else (box[2] - box[0], box[3] - box[1])
    across, down = taps(wide, after.width, numbers[2]), taps(high, after.height, numbers[2])
    return across, down, min(math.ceil(high) + down, before.height)


def _resize_work(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    across, down, lines = _resize_passes(numbers, before, after)
    weights = 32 * (after.width * across + after.height * down)  # a sine or two each
    return (after.width * lines * across + after.px * down) * BANDS[after.mode] + weights


def _resize_spare(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    across, down, lines = _resize_passes(numbers, before, after)
    weights = 8 * (after.width * (across + 1) + after.height * (down + 1))
    reduced = 0 if numbers[4] is None else before.nbytes
    return Shape(after.width, lines, after.mode).nbytes + weights + reduced


def _run_resize(image: Image.Image, numbers: Sequence[Any]) -> Image.Image:
    width, height, resample, box, gap = numbers
    return image.resize((width, height), resample, None if box is None else tuple(box), gap)


# --- reduce (across, down): the mean of each block of so many px, counted from the left and the top -------------------


def _check_reduce(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if len(numbers) != 2 or not whole_numbers(numbers, 1, _MAX_SIDE) or image.mode in ("LA", "RGBA"):
        return None
    across, down = numbers
    if not 1 < across * down <= _MAX_BLOCK:
        return None
    return Shape(-(-image.width // across), -(-image.height // down), image.mode)


def _reduce_work(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    return before.px * BANDS[before.mode]


# --- transpose (method), convert (mode), point (table) --------------------------------------------------------------

_TURNED = (2, 4, 5, 6)
"""Methods that exchange width and height: a quarter turn either way, transpose and transverse."""


def _check_transpose(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if len(numbers) != 1 or not whole_numbers(numbers, 0, 6):
        return None
    if numbers[0] in _TURNED:
        return Shape(image.height, image.width, image.mode)
    return image


@cache
def converts(before: str, after: str) -> bool:
    """Whether the installed Pillow converts between two of `BANDS`' modes in one step."""
    try:
        Image.new(before, (1, 1)).im.convert(after, 3)
    except ValueError:
        return False
    return True


def _check_convert(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if len(numbers) != 1 or not isinstance(numbers[0], str) or numbers[0] not in BANDS:
        return None
    if not converts(image.mode, numbers[0]):
        return None
    return Shape(image.width, image.height, numbers[0])


def _convert_work(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    return _moves(numbers, before, after) * (16 if "HSV" in (before.mode, after.mode) else 2)


def _check_point(numbers: Sequence[Any], image: Shape) -> Shape | None:
    table = numbers[0] if len(numbers) == 1 else None
    return image if isinstance(table, bytes) and len(table) == 256 * BANDS[image.mode] else None


# --- filter (name, ...) ---------------------------------------------------------------------------------------------

_FILTERED = ("L", "RGB", "RGBA", "CMYK")


def _check_filter(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if not numbers or image.mode not in _FILTERED:
        return None
    name, *rest = numbers
    if name in ("gaussian", "box"):
        sound = len(rest) == 2 and finite_numbers(rest, _MAX_RADIUS) and min(rest) >= 0
    elif name == "unsharp":
        sound = len(rest) == 3 and finite_numbers(rest[:1], _MAX_RADIUS) and rest[0] >= 0
        sound = sound and whole_numbers(rest[1:], 0, 1 << 16)
    elif name == "rank":
        sound = len(rest) == 2 and whole_numbers(rest, 0, _MAX_WINDOW**2 - 1) and rest[0] % 2 == 1
        sound = sound and 1 < rest[0] <= _MAX_WINDOW and rest[1] < rest[0] ** 2  # 1 ends the process in Pillow 12.3
    elif name == "mode":
        sound = len(rest) == 1 and whole_numbers(rest, 1, _MAX_WINDOW)
    elif name == "kernel":
        sound = len(rest) in (2 + 9, 2 + 25) and finite_numbers(rest, _MAX_NUMBER) and rest[0] != 0
    else:
        sound = False
    return image if sound else None


def _filter_taps(numbers: Sequence[Any]) -> float:
    name, *rest = numbers
    if name == "rank":
        return float(16 * rest[0] ** 2)
    if name == "mode":  # a table of 256 counts is cleared and searched for each px
        return float(400 + 2 * rest[0] ** 2)
    if name == "kernel":
        return len(rest) - 2
    return 3 * 2 * 3 + 2  # three box blurs either way


def _filter_work(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    return after.px * BANDS[after.mode] * _filter_taps(numbers)


def _filter_spare(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    if numbers[0] in ("rank", "mode"):  # bands one by one, each with a margin
        return (BANDS[after.mode] + 2) * Shape(after.width + numbers[1], after.height + numbers[1], "L").nbytes
    return Shape(after.height, after.width, after.mode).nbytes  # a blur turns the image to go down its columns


def _run_filter(image: Image.Image, numbers: Sequence[Any]) -> Image.Image:
    return image.filter(filter_of(numbers))


def filter_of(numbers: Sequence[Any]) -> ImageFilter.Filter:
    """Pillow's filter for the numbers of a `filter` step."""
    name, *rest = numbers
    if name == "gaussian":
        return ImageFilter.GaussianBlur(tuple(rest))
    if name == "box":
        return ImageFilter.BoxBlur(tuple(rest))
    if name == "unsharp":
        return ImageFilter.UnsharpMask(*rest)
    if name == "rank":
        return ImageFilter.RankFilter(*rest)
    if name == "mode":
        return ImageFilter.ModeFilter(*rest)
    scale, offset, *weights = rest
    side = math.isqrt(len(weights))
    return ImageFilter.Kernel((side, side), weights, scale, offset)


def numbers_of(one: Any) -> tuple[Any, ...] | None:
    """The numbers of a `filter` step for one of Pillow's own filters; None for any other."""
    found = type(one)
    if found in (ImageFilter.GaussianBlur, ImageFilter.BoxBlur):
        radius = one.radius
        both = tuple(radius) if isinstance(radius, (tuple, list)) else (radius, radius)
        return ("gaussian" if found is ImageFilter.GaussianBlur else "box", *both)
    if found is ImageFilter.UnsharpMask:
        return ("unsharp", one.radius, one.percent, one.threshold)
    if found in (ImageFilter.RankFilter, ImageFilter.MedianFilter, ImageFilter.MinFilter, ImageFilter.MaxFilter):
        return ("rank", one.size, one.rank)
    if found is ImageFilter.ModeFilter:
        return ("mode", one.size)
    if isinstance(one, ImageFilter.BuiltinFilter) and found.__module__ == ImageFilter.__name__:
        size, scale, offset, weights = one.filterargs
        return ("kernel", scale, offset, *weights) if size in ((3, 3), (5, 5)) else None
    return None


# --- transform (width, height, method, numbers, filter, fill): fill is None, an int, or one int a band --------------


def _check_transform(numbers: Sequence[Any], image: Shape) -> Shape | None:
    if len(numbers) != 6 or image.mode not in ("L", "RGB"):
        return None
    width, height, method, data, resample, fill = numbers
    if not whole_numbers((width, height), 1, _MAX_SIDE) or type(method) is not int or type(resample) is not int:
        return None
    if len(data if isinstance(data, (tuple, list)) else ()) != TRANSFORM_NUMBERS.get(method, -1):
        return None
    if not finite_numbers(data, _MAX_NUMBER) or resample not in (NEAREST, BILINEAR, BICUBIC):
        return None
    many = isinstance(fill, (tuple, list))
    if fill is not None and not whole_numbers(fill if many else (fill,), 0, 255):
        return None
    if many and len(fill) != BANDS[image.mode]:
        return None
    return Shape(width, height, image.mode)


def _transform_work(numbers: Sequence[Any], before: Shape, after: Shape) -> float:
    return after.px * BANDS[after.mode] * {NEAREST: 8, BILINEAR: 8, BICUBIC: 32}[numbers[4]]


def _run_transform(image: Image.Image, numbers: Sequence[Any]) -> Image.Image:
    width, height, method, data, resample, fill = numbers
    colour = tuple(fill) if isinstance(fill, list) else fill
    return image.transform((width, height), method, tuple(data), resample, fillcolor=colour)


# --- the table ------------------------------------------------------------------------------------------------------

PRIMITIVES: dict[str, Primitive] = {
    "crop": Primitive(_check_crop, _moves, lambda image, box: image.crop(tuple(box))),
    "resize": Primitive(_check_resize, _resize_work, _run_resize, 3, _resize_spare),
    "reduce": Primitive(_check_reduce, _reduce_work, lambda image, numbers: image.reduce(tuple(numbers))),
    "transpose": Primitive(_check_transpose, _moves, lambda image, numbers: image.transpose(numbers[0]), -1),
    "convert": Primitive(_check_convert, _convert_work, lambda image, numbers: image.convert(numbers[0]), 1),
    "point": Primitive(_check_point, _moves, lambda image, numbers: image.point(list(numbers[0])), -1),
    "filter": Primitive(_check_filter, _filter_work, _run_filter, 1, _filter_spare),
    "transform": Primitive(_check_transform, _transform_work, _run_transform, -1),
}
"""By name, every step that a picture's program may have."""


def output(step: Step, image: Shape) -> Shape | None:
    """What a step makes of an image; None if it does not take it, or there is no such step."""
    primitive = PRIMITIVES.get(step[0])
    if primitive is None or image.mode not in BANDS:
        return None
    return primitive.check(step[1:], image)


def cost(step: Step, before: Shape, after: Shape) -> Cost:
    """What a step takes that `output` has accepted."""
    primitive = PRIMITIVES[step[0]]
    spare = primitive.spare(step[1:], before, after)
    return Cost(primitive.work(step[1:], before, after), after.nbytes + spare)


def run(image: Image.Image, steps: Sequence[Step]) -> Image.Image:
    """The steps on an image, one after the other, by Pillow."""
    for step in steps:
        image = PRIMITIVES[step[0]].run(image, step[1:])
    return image


def check(made_for: tuple[Any, ...], steps: Sequence[Step], limits: Limits) -> Cost:
    """See `programs.program.Kind`; `made_for` is (width, height, mode) of the decoded picture."""
    sound = len(made_for) == 3 and whole_numbers(made_for[:2], 1, _MAX_SIDE) and isinstance(made_for[2], str)
    if not sound or made_for[2] not in BANDS:
        raise ProgramRefused(
            f"a picture must have a width, a height and a mode of {sorted(BANDS)}, got {reprlib.repr(made_for)}"
        )
    image = Shape(*made_for)
    work, nbytes = float(image.px), float(image.nbytes)
    _see(image.px <= limits.px, "picture", image, limits)
    for position, step in enumerate(steps):
        made = output(step, image)
        if made is None:
            raise ProgramRefused(
                f"step {position} must be one of {sorted(PRIMITIVES)} with numbers in range for {image}, got "
                f"{reprlib.repr(step)}"
            )
        _see(made.px <= limits.px, f"step {position}, {step[0]},", made, limits)
        took = cost(step, image, made)
        work += took.work
        nbytes = max(nbytes, image.nbytes + took.nbytes)
        _see(work <= limits.work and nbytes <= limits.nbytes, f"step {position}, {step[0]},", made, limits)
        image = made
    return Cost(work, nbytes)


def _see(within: bool, what: str, image: Shape, limits: Limits) -> None:
    if not within:
        raise ProgramRefused(f"a program must stay within {limits}, got more by its {what} of {image}")
