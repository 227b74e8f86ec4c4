"""Steps of pictures' programs by primitive: such as are taken, with what they make, and such as have to be refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.primitives import BANDS, Shape, output, run
from sophon_loader.kinds.image.segments import leading, shrunk
from sophon_loader.programs.program import Limits, Program, Step

NAN, INFINITE = float("nan"), float("inf")
NEAREST, LANCZOS, BILINEAR, BICUBIC, BOX, HAMMING = range(6)
AFFINE, EXTENT, PERSPECTIVE, QUAD = range(4)
INVERTED = bytes(range(256))[::-1]
SIZE = 40, 30
"""Of the pictures that the examples are for, px."""


class Taken(NamedTuple):
    """A step that is taken.

    Args:
        step: which.
        mode: of an image of `SIZE` that it is for.
        size: of what it makes, px.
        makes: that image's mode; "" for the same.
    """

    step: Step
    mode: str = "RGB"
    size: tuple[int, int] = SIZE
    makes: str = ""

    @property
    def before(self) -> Shape:
        """What it is for."""
        return Shape(*SIZE, self.mode)

    @property
    def after(self) -> Shape:
        """What it makes."""
        return Shape(*self.size, self.makes or self.mode)


TAKEN = [
    Taken(("crop", 1, 2, 31, 22), size=(30, 20)),
    Taken(("crop", -5, -6, 45, 36), "LA", (50, 42)),
    Taken(("crop", 100, 100, 101, 103), "L", (1, 3)),
    *(Taken(("resize", 7, 9, one, None, None), size=(7, 9)) for one in range(6)),
    Taken(("resize", 90, 3, LANCZOS, (1.5, 0, 40, 29.25), None), "CMYK", (90, 3)),
    Taken(("resize", 4, 70, BICUBIC, [0, 0, 1, 1], None), "L", (4, 70)),
    Taken(("resize", 5, 3, BILINEAR, None, 1), "La", (5, 3)),
    Taken(("resize", 5, 3, BOX, (0, 1, 39.5, 29), 2.5), "RGBa", (5, 3)),
    Taken(("resize", 5, 3, NEAREST, None, 2.0), "RGBA", (5, 3)),
    Taken(("resize", *SIZE, NEAREST, None, None), "LA"),
    Taken(("reduce", 2, 2), size=(20, 15)),
    Taken(("reduce", 3, 1), "La", (14, 30)),
    Taken(("reduce", 1 << 20, 16), "CMYK", (1, 2)),
    *(Taken(("transpose", one)) for one in (0, 1, 3)),
    *(Taken(("transpose", one), "CMYK", SIZE[::-1]) for one in (2, 4, 5, 6)),
    *(Taken(("convert", one), makes=one) for one in ("L", "LA", "RGBA", "YCbCr", "HSV", "CMYK", "RGB")),
    Taken(("convert", "RGB"), "CMYK", makes="RGB"),
    Taken(("convert", "La"), "LA", makes="La"),
    *(Taken(("point", INVERTED * bands), mode) for mode, bands in BANDS.items()),
    Taken(("filter", "gaussian", 0, 1000.0), "RGBA"),
    Taken(("filter", "gaussian", 0, 0), "L"),
    Taken(("filter", "box", 1.5, 2), "CMYK"),
    Taken(("filter", "unsharp", 2, 150, 3)),
    Taken(("filter", "unsharp", 0.0, 0, 65536), "L"),
    Taken(("filter", "rank", 3, 8)),
    Taken(("filter", "rank", 15, 0), "L"),
    Taken(("filter", "mode", 15)),
    Taken(("filter", "mode", 2), "L"),
    Taken(("filter", "kernel", 9.0, 1, *range(9))),
    Taken(("filter", "kernel", -1, 0, *[-1e9] * 25), "L"),
    Taken(("transform", 9, 8, AFFINE, (1, 0.5, 0, 0, 1, 0), NEAREST, None), size=(9, 8)),
    Taken(("transform", 9, 8, EXTENT, (0, 0, 1e9, -1e9), BILINEAR, 255), "L", (9, 8)),
    Taken(("transform", 9, 8, PERSPECTIVE, [0.0] * 8, BICUBIC, (1, 2, 3)), size=(9, 8)),
    Taken(("transform", 9, 8, QUAD, (0, 0, 0, 9, 9, 9, 9, 0), NEAREST, [7]), "L", (9, 8)),
]
"""Of every primitive and every alternative in it, odd numbers that are in range among them."""

_ODD: tuple[Any, ...] = (
    None,
    True,
    "1",
    b"1",
    "\udcff",
    (),
    [],
    {},
    {"a": 1},
    1.0,
    NAN,
    INFINITE,
    1 << 63,
    -(1 << 2000),
)
"""What is no whole number in range, wherever one is expected; in the order of their types."""


def _each(step: Step, *places: int, odd: tuple[Any, ...] = _ODD) -> list[Step]:
    """The step with each odd value at each of these places."""
    return [(*step[:place], one, *step[place + 1 :]) for place in places for one in odd]


_NO_NUMBER = tuple(one for one in _ODD if one != 1.0)
_NO_TEXT = tuple(one for one in _ODD if not isinstance(one, str))
_CROP: Step = ("crop", 0, 0, 9, 9)
_RESIZE: Step = ("resize", 9, 9, BILINEAR, None, None)
_TRANSFORM: Step = ("transform", 9, 9, AFFINE, (1, 0, 0, 0, 1, 0), NEAREST, None)


def _box(*numbers: Any) -> Step:
    return ("resize", 9, 9, BILINEAR, numbers, None)


def _data(method: Any, *numbers: Any) -> Step:
    return ("transform", 9, 9, method, numbers, NEAREST, None)


def _fill(fill: Any) -> Step:
    return (*_TRANSFORM[:-1], fill)


DEEP: Any = ()
for _ in range(400):
    DEEP = (DEEP,)

REFUSED: dict[str, list[Step]] = {
    "no such step": [("melt", 1), ("", 1), ("CROP", 0, 0, 9, 9), ("\udcff",), ("crop\0", 0, 0, 9, 9)],
    "crop": [
        *_each(_CROP, 1, 2, 3, 4),
        *(("crop",), ("crop", 0, 0, 9), ("crop", 0, 0, 9, 9, 9), ("crop", (0, 0, 9, 9)), ("crop", DEEP)),
        *(("crop", 9, 9, 9, 10), ("crop", 9, 9, 10, 9), ("crop", 9, 0, 0, 9), ("crop", 0, 0, (1 << 20) + 1, 1)),
    ],
    "resize": [
        *_each(_RESIZE, 1, 2, 3),
        *(("resize",), _RESIZE[:-1], (*_RESIZE, None), ("resize", 0, 9, BILINEAR, None, None)),
        *(("resize", 9, -1, BILINEAR, None, None), ("resize", 9, (1 << 20) + 1, BILINEAR, None, None)),
        *(("resize", 9, 9, 6, None, None), ("resize", 9, 9, -1, None, None)),
    ],
    "resize from a box": [
        *_each(_RESIZE, 4, odd=tuple(one for one in _ODD if one is not None)),
        *(_box(*numbers) for numbers in _each((0, 0, 20, 20), 0, 1, 2, 3, odd=_NO_NUMBER)),
        *(_box(0, 0, 9), _box(0, 0, 9, 9, 9), _box(0, 0, 0, 9), _box(3, 3, 3, 3), _box(9, 0, 0, 9)),
        *(_box(-0.5, 0, 9, 9), _box(0, 0, 40.5, 9), _box(0, 0, 9, 31), _box(0, 0, 1e-9, 9), _box(0, 0, 9, 1e-300)),
        *(_box(DEEP, DEEP, DEEP, DEEP), _box(*DEEP)),
    ],
    "resize with a gap": _each(_RESIZE, 5, odd=(*[one for one in _NO_NUMBER if one is not None], 0, 0.99, -3, 1e10)),
    "reduce": [
        *_each(("reduce", 2, 2), 1, 2),
        *(("reduce",), ("reduce", 2), ("reduce", 2, 2, 2), ("reduce", (2, 2)), ("reduce", 1, 1), ("reduce", 0, 2)),
        *(("reduce", 2, -1), ("reduce", (1 << 20) + 1, 1), ("reduce", 1 << 20, 17), ("reduce", DEEP)),
    ],
    "transpose": [
        *_each(("transpose", 0), 1),
        ("transpose",),
        ("transpose", 0, 0),
        ("transpose", 7),
        ("transpose", -1),
    ],
    "convert": [
        *_each(("convert", "L"), 1),
        *(
            ("convert",),
            ("convert", "L", "L"),
            ("convert", "P"),
            ("convert", "I;16"),
            ("convert", "1"),
            ("convert", DEEP),
        ),
        *(("convert", "rgb"), ("convert", ("L",))),
    ],
    "point": [
        *_each(("point", INVERTED * 3), 1),
        *(
            ("point",),
            ("point", INVERTED * 3, "L"),
            ("point", INVERTED),
            ("point", b""),
            ("point", INVERTED * 3 + b"\0"),
        ),
        *(("point", "a" * 768), ("point", (0,) * 768), ("point", DEEP)),
    ],
    "filter by name": [("filter",), ("filter", "sobel", 1), *_each(("filter", "gaussian", 1, 1), 1), ("filter", DEEP)],
    "blur": [
        step
        for name in ("gaussian", "box")
        for step in (
            *_each(("filter", name, 1, 1), 2, 3, odd=_NO_NUMBER),
            *(("filter", name), ("filter", name, 1), ("filter", name, 1, 1, 1), ("filter", name, (1, 1))),
            *(("filter", name, -0.1, 1), ("filter", name, 1, 1000.5), ("filter", name, 1e9, 1e9)),
        )
    ],
    "unsharp": [
        *_each(("filter", "unsharp", 2, 150, 3), 2, odd=_NO_NUMBER),
        *_each(("filter", "unsharp", 2, 150, 3), 3, 4),
        *(("filter", "unsharp", 2, 150), ("filter", "unsharp", -1, 150, 3), ("filter", "unsharp", 2, 65537, 3)),
    ],
    "rank": [
        *_each(("filter", "rank", 3, 4), 2, 3),
        *(("filter", "rank", 3), ("filter", "rank", 2, 1), ("filter", "rank", 3, 9), ("filter", "rank", 17, 1)),
        ("filter", "rank", 1, 0),  # which ends the process in Pillow 12.3
        *(("filter", "rank", 3, -1), ("filter", "rank", -3, 1), ("filter", "rank", 223, 1)),
    ],
    "mode": [
        *_each(("filter", "mode", 3), 2),
        *(("filter", "mode", *rest) for rest in ((), (0,), (16,), (3, 3), (-1,))),
    ],
    "kernel": [
        *_each(("filter", "kernel", 1, 0, *[1] * 9), 2, 3, 4, 12, odd=_NO_NUMBER),
        *(("filter", "kernel", 1, 0, *[1] * count) for count in (0, 1, 8, 10, 16, 24, 26, 49)),
        *(("filter", "kernel", 0, 0, *[1] * 9), ("filter", "kernel", 0.0, 0, *[1] * 25), ("filter", "kernel")),
        ("filter", "kernel", 1, 0, *[2e9] * 9),
    ],
    "transform": [
        *_each(_TRANSFORM, 1, 2, 3, 5),
        *(("transform",), _TRANSFORM[:-1], (*_TRANSFORM, None), ("transform", 0, 9, *_TRANSFORM[3:])),
        *(("transform", 9, (1 << 20) + 1, *_TRANSFORM[3:]), (*_TRANSFORM[:5], LANCZOS, None)),
        *((*_TRANSFORM[:5], -1, None), (*_TRANSFORM[:5], BOX, None)),
    ],
    "transform by numbers": [
        *_each(_TRANSFORM, 4),
        *(_data(AFFINE, *numbers) for numbers in _each((1, 0, 0, 0, 1, 0), 0, 5, odd=_NO_NUMBER)),
        *(_data(method, *[1] * count) for method in range(4) for count in range(10) if count != (6, 4, 8, 8)[method]),
        *(_data(4, *[1] * 8), _data(-1, *[1] * 6), _data(AFFINE, *[2e9] * 6), _data(AFFINE, *DEEP)),
    ],
    "transform with a colour": [
        *(_fill(one) for one in _ODD if one is not None),
        *(_fill((1, 2, one)) for one in _ODD),
        *(_fill(-1), _fill(256), _fill((1, 2)), _fill((1, 2, 3, 4)), _fill((0, 0, 256)), _fill(DEEP)),
    ],
}
"""For an RGB image of `SIZE`."""

REFUSED_OF_MODE: list[tuple[str, Step]] = [
    *((mode, ("resize", 9, 9, BILINEAR, None, None)) for mode in ("LA", "RGBA")),
    *((mode, ("reduce", 2, 2)) for mode in ("LA", "RGBA")),
    *((mode, ("filter", "box", 1, 1)) for mode in ("LA", "La", "YCbCr", "HSV", "RGBa")),
    *((mode, _TRANSFORM) for mode in BANDS if mode not in ("L", "RGB")),
    *((mode, ("crop", 0, 0, 9, 9)) for mode in ("P", "1", "I;16", "F", "", "rgb")),
    *(("L", _fill(one)) for one in ((1, 2, 3), ())),
    ("L", ("point", INVERTED * 3)),
    ("HSV", ("convert", "CMYK")),
]
"""Steps that images of some modes do not take."""

_HUGE: Step = ("resize", 16000, 16000, LANCZOS, None, None)
_BACK: Step = ("resize", 20000, 10, LANCZOS, None, None)
TOO_MUCH: dict[str, tuple[tuple[Any, ...], tuple[Step, ...]]] = {
    "a huge picture": ((1 << 20, 1 << 20, "RGB"), ()),
    "a huge crop": ((*SIZE, "RGB"), (("crop", -(1 << 20), -(1 << 20), 1 << 20, 1 << 20),)),
    "a huge resize": ((*SIZE, "L"), (("resize", 1 << 20, 1 << 20, NEAREST, None, None),)),
    "a huge transform": ((*SIZE, "RGB"), (("transform", 1 << 20, 1 << 20, AFFINE, (1,) * 6, NEAREST, None),)),
    "sixteen huge resizes": ((*SIZE, "RGB"), (_HUGE, _BACK) * 16),
    "a few large filters": ((8000, 8000, "RGB"), (("filter", "rank", 15, 112),) * 3),
    "a resize of a thin box": ((1 << 20, 200, "RGB"), (("resize", 1 << 20, 200, LANCZOS, (0, 0, 1, 200), None),) * 90),
}
"""What is made for, and steps, each of which is in range: they take more than the usual `Limits`."""

NO_PICTURES: list[tuple[Any, ...]] = [
    *((), (40,), (40, 30), (40, 30, "RGB", 1), (0, 30, "RGB"), (40, -1, "RGB"), (40, (1 << 20) + 1, "RGB")),
    *_each((40, 30, "RGB"), 0, 1),
    *_each((40, 30, "RGB"), 2),
    *((40, 30, mode) for mode in ("P", "1", "I;16", "F", "rgb", ("RGB",), ["RGB"], {"RGB": 3}, DEEP)),
]
"""What a program cannot be made for."""


def noise(shape: Shape, seed: int = 0) -> Image.Image:
    """An image of any mode, with any values."""
    values = np.random.default_rng(seed).integers(0, 256, (shape.px, BANDS[shape.mode]), np.uint8)
    bands = [Image.frombytes("L", shape[:2], values[:, band].tobytes()) for band in range(BANDS[shape.mode])]
    return bands[0] if shape.mode == "L" else Image.merge(shape.mode, bands)


def taken(packed: bytes, limits: Limits) -> Program | None:
    """Any bytes as a program that pictures take within limits, or None; what it raises is a finding."""
    try:
        program = Program.unpack(packed)
    except ProgramRefused:
        return None
    with suppress(ProgramRefused):
        assert isinstance(hash(program.signature(ImageKind())), int)
    try:
        took = ImageKind().check(program.made_for, program.steps, limits)
    except ProgramRefused:
        return None
    assert 0 < took.work <= limits.work and 0 < took.nbytes <= limits.nbytes
    assert Program.unpack(program.pack()) == program, "what has been read can be written, and read again"
    return program


def see_it_runs_as_said(program: Program) -> None:
    """Each step makes of an image what `output` says, and a prefix and its remainder, at each cut, what all make."""
    shapes = [Shape(*program.made_for)]
    images = [noise(shapes[0])]
    for step in program.steps:
        made = output(step, shapes[-1])
        assert made is not None
        shapes.append(made)
        images.append(run(images[-1], [step]))
    assert [(*image.size, image.mode) for image in images] == [tuple(shape) for shape in shapes]
    for cut in (shrunk(program.steps), leading(program.steps), len(program.steps)):
        prefix = run(images[0], program.steps[:cut])
        assert prefix == images[cut] and run(prefix, program.steps[cut:]) == images[-1]
