"""Programs: a file, and the steps with drawn numbers that a sample applies to it.

Nothing here knows what a file holds. A kind (`sophon_loader.kinds`) lists the steps, their inputs and results, and the
places at which a program can be cut.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol

import msgpack

from sophon_loader.errors import ProgramRefused
from sophon_loader.wire.counting import holds_more

Step = tuple[Any, ...]
"""A primitive's name and its numbers: `("crop", 10, 20, 234, 244)`."""

MAX_STEPS = 32
"""Steps of one program. The longest of torchvision's and timm's presets has under ten."""
MAX_PROGRAM_NBYTES = 16_384
"""Bytes of a packed program. The longest step is a point table of 256 bytes per band."""
MAX_PROGRAM_VALUES = 4096
"""Numbers and texts of one packed program."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, checked before its file is read.

    Args:
        px: size of an image, or of another kind's value, behind any step.
        work: multiplications of all steps, or their CPU time in multiplications. A resize takes its output px times its
            taps.
        nbytes: bytes of one step's input, output and temporary memory.
    """

    px: float = 1 << 28
    work: float = 1e11
    nbytes: float = 1 << 32


class Cost(NamedTuple):
    """Cost of a step, known before it runs.

    Args:
        work: multiplications, or an equal number of moves of a value.
        nbytes: bytes of its output and temporary memory.
    """

    work: float
    nbytes: float


class Kind(Protocol):
    """Rules of one kind of file for its programs."""

    name: str
    segments: tuple[str, ...]
    """Places at which a program can be cut, in order."""

    def check(self, made_for: tuple[Any, ...], steps: Sequence[Step], limits: Limits) -> Cost:
        """Check that each step accepts the previous step's result within the limits; return the cost of all steps.

        Args:
            made_for: facts about the file, as in `Program`.
            steps: the steps in order.
            limits: highest allowed costs.

        Raises:
            ProgramRefused: a step does not fit, or a limit is exceeded.
        """

    def fixed(self, step: Step) -> Step | None:
        """Return a step without the numbers that vary from sample to sample; None for a step that only some samples
        have.

        Raises:
            ProgramRefused: the kind has no such step.
        """


@dataclass(frozen=True)
class Program:
    """The steps that one sample applies to one file.

    Args:
        kind: name of the kind of the file, `"image"`.
        file: key of the file, relative to the dataset's root.
        made_for: the kind's facts about the file for which the numbers were drawn: width, height and mode of a picture.
            Before a program runs, the file is checked against them.
        steps: the steps in order.
        table: name of the table in which the last step's values are looked up; "" for none.

    Example:
        >>> program = Program("image", "cat/1.jpg", (500, 375, "RGB"), (("crop", 0, 0, 9, 9),))
        >>> Program.unpack(program.pack()) == program
        True
    """

    kind: str
    file: str
    made_for: tuple[Any, ...]
    steps: tuple[Step, ...]
    table: str = ""

    def pack(self) -> bytes:
        """Return the program as msgpack: [kind, file, made for, steps, table]."""
        row = [self.kind, self.file, self.made_for, self.steps, self.table]
        packed: bytes = msgpack.packb(row, unicode_errors="surrogateescape")
        return packed

    @staticmethod
    def unpack(packed: bytes) -> Program:
        """Read any bytes as a packed program, in bounded time. The kind's `check` decides if its steps are valid.

        Raises:
            ProgramRefused: the bytes are not a packed program, or too many.
        """
        if len(packed) > MAX_PROGRAM_NBYTES or holds_more(packed, MAX_PROGRAM_VALUES):
            raise ProgramRefused(
                f"a program must be at most {MAX_PROGRAM_NBYTES} bytes and {MAX_PROGRAM_VALUES} values, got "
                f"{len(packed)} bytes"
            )
        try:
            kind, file, made_for, steps, table = _unpackb(packed)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise ProgramRefused(f"a program must be [kind, file, made for, steps, table]: {error}") from error
        texts = all(isinstance(text, str) for text in (kind, file, table))
        if not texts or not isinstance(made_for, tuple) or not isinstance(steps, tuple) or len(steps) > MAX_STEPS:
            raise ProgramRefused(f"a program must have a kind, a file, at most {MAX_STEPS} steps and a table")
        for step in steps:
            if not isinstance(step, tuple) or not step or not isinstance(step[0], str):
                raise ProgramRefused(f"a step must be (name, numbers ...), got {reprlib.repr(step)}")
        return Program(kind, file, made_for, steps, table)

    def signature(self, kind: Kind) -> tuple[Step, ...]:
        """Return the steps without the numbers that vary from sample to sample. Costs are learnt per signature.

        Raises:
            ProgramRefused: the kind has no such step.
        """
        return tuple(fixed for step in self.steps if (fixed := kind.fixed(step)) is not None)


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("it can hold no maps or extensions")


_unpackb = partial(
    msgpack.unpackb, use_list=False, unicode_errors="surrogateescape", object_hook=_refuse, ext_hook=_refuse
)
"""Unpacks msgpack into values that can be hashed, down to the innermost."""


def whole_numbers(values: Sequence[Any], least: int, most: int) -> bool:
    """Return True if all values are ints, not bools, from `least` to `most`."""
    return all(type(value) is int and least <= value <= most for value in values)


def finite_numbers(values: Sequence[Any], most: float) -> bool:
    """Return True if all values are ints or floats, finite, and at most `most` in absolute value."""
    return all(type(value) in (int, float) and abs(value) <= most for value in values)
