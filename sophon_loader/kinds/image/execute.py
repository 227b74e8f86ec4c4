"""Running a picture's program by Pillow: all of it, up to a segment, or from one on."""

from __future__ import annotations

from typing import Any

import PIL
from PIL import Image

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.part import NotCut, PartOfFile
from sophon_loader.kinds.image.primitives import Shape, run
from sophon_loader.kinds.image.segments import SEGMENTS, shape_at, steps_until
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.kinds.image.source import StepsOnPicture, source_of
from sophon_loader.programs.program import Limits, Program

_WITHOUT_TABLE = SEGMENTS[:-1]


def execute(
    program: Program, value: Any, start: str = "file", stop: str = "8-bit", limits: Limits | None = None
) -> Any:
    """Take a picture from one segment of its program to another.

    A prefix and its remainder give what all of it gives. A part of the file is decoded where that is enough.

    Args:
        program: that anybody may have made.
        value: at `start`: the bytes of the file, or an image.
        start, stop: segments, in their order. The table belongs to whoever knows what its name stands for.
        limits: of the whole program; the usual ones without it.

    Returns:
        The value at `stop`: an image, or the bytes at `file`.

    Raises:
        ProgramRefused: before anything is decoded: the program is none of a picture, takes more than the limits, or was
            made for another picture than this one; or Pillow here does not do what programs say. Draw it anew.
        Exception: whatever Pillow raises for a damaged file.

    Example:
        >>> shrunk = execute(program, file, stop="shrunk")
        >>> execute(program, shrunk, start="shrunk") == execute(program, file)
        True
    """
    if start not in _WITHOUT_TABLE or stop not in _WITHOUT_TABLE[_WITHOUT_TABLE.index(start) :]:
        raise ValueError(f"start and stop must be two of {_WITHOUT_TABLE}, in order, got {start!r} and {stop!r}")
    check(program, Limits() if limits is None else limits)
    _see_trusted()
    if start == "file":
        begun = begin_program(program, value)
        return value if stop == "file" else image_at(begun, stop)
    ended = program.steps[: steps_until(stop, program.steps)]
    done = steps_until(start, program.steps)
    shape = shape_at(start, program.steps, Shape(*program.made_for))
    _see_same(shape, Shape(value.width, value.height, value.mode))
    return run(value, ended[done:])


def check(program: Program, limits: Limits) -> None:
    """See that a program is one of a picture, whose steps suit each other and take no more than they may.

    Args:
        program: that anybody may have made.
        limits: of all of it.

    Raises:
        ProgramRefused: it is not.
    """
    if program.kind != ImageKind.name:
        raise ProgramRefused(f"a program must be of kind {ImageKind.name!r} to run on a picture, got {program.kind!r}")
    ImageKind().check(program.made_for, program.steps, limits)


def begin_program(program: Program, data: bytes) -> StepsOnPicture:
    """The steps of a program on the picture of a file, of which only the header has been read.

    Args:
        program: that `check` takes.
        data: the file.

    Raises:
        ProgramRefused: the program was made for another picture than this one.
        Exception: whatever Pillow raises for a file that it knows and cannot open.
    """
    try:
        source = source_of(data)
    except Image.UnidentifiedImageError as error:
        raise ProgramRefused(f"a program must be run on the picture it was made for, got a file: {error}") from error
    if source is None:
        raise ProgramRefused("a program must be run on the picture it was made for, got a file that has no programs")
    _see_same(Shape(*program.made_for), source.shape)
    return StepsOnPicture(source, program.steps)


def image_at(begun: StepsOnPicture, segment: str) -> Image.Image:
    """What the steps up to a segment make of a picture.

    Args:
        begun: from `begin_program`.
        segment: from `decoded` to `8-bit`.

    Raises:
        ProgramRefused: Pillow here does not do what programs say.
        Exception: whatever Pillow raises for a damaged file.
    """
    _see_trusted()
    ended = begun.steps[: steps_until(segment, begun.steps)]
    image = begun.source.held(ended).run(ended)
    image.info = begun.source.info()  # a part of the file may have less
    return image


def part_of_begun(begun: StepsOnPicture, *, keep_metadata: bool = False) -> PartOfFile | NotCut:
    """The part of a picture's file that the steps of a program read. No pixel is decoded, so any Pillow gives the same.

    Args:
        begun: from `begin_program`.
        keep_metadata: whether the part is to hold what Pillow makes an image's `info` of.
    """
    part = begun.part(keep_metadata=keep_metadata)
    if isinstance(part, PartOfFile):
        begun.source.let_pillow_warn()  # whoever gets the part does not see the whole header
    return part


def _see_trusted() -> None:
    if not trusted():
        raise ProgramRefused(f"Pillow must do what programs say, got {PIL.__version__}, which does not")


def _see_same(wanted: Shape, found: Shape) -> None:
    if wanted != found:
        raise ProgramRefused(f"a program must be run on the picture it was made for, {wanted}, got {found}")
