"""A program: a file, and the steps with numbers that a sample applies to it, all drawn.

Nothing here knows what a file holds. A kind (`sophon_loader.kinds`) says which steps there are, what they take and
make, and at which places a program can be cut.
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
"""A primitive's name, and its numbers: `("crop", 10, 20, 234, 244)`."""

MAX_STEPS = 32
"""Of one program. The longest that torchvision's and timm's presets make has under ten."""
MAX_PROGRAM_NBYTES = 16_384
"""Packed. The longest step is a point table of 256 bytes a band."""
MAX_PROGRAM_VALUES = 4096
"""Numbers and texts of one packed program."""


@dataclass(frozen=True)
class Limits:
    """How much a program may take, checked before any of its file is read.

    Args:
        px: of an image, or whatever a kind counts, behind any step.
        work: multiplications of all steps together, or CPU time in those: a resize takes its output px times its taps.
        nbytes: of one step's input, output and what it needs between them.
    """

    px: float = 1 << 28
    work: float = 1e11
    nbytes: float = 1 << 32


class Cost(NamedTuple):
    """What a step takes, known before it runs.

    Args:
        work: multiplications, or as many moves of a value.
        nbytes: of its output, and of what it needs until it has that.
    """

    work: float
    nbytes: float


class Kind(Protocol):
    """What a kind of file says about its programs."""

    name: str
    segments: tuple[str, ...]
    """Places at which a program can be cut, in order."""

    def check(self, made_for: tuple[Any, ...], steps: Sequence[Step], limits: Limits) -> Cost:
        """See that each step takes what the one before it makes, within the limits; all that they take.

        Raises:
            ProgramRefused: it does not.
        """

    def fixed(self, step: Step) -> Step | None:
        """A step without the numbers that vary from sample to sample; None for one that only some samples have.

        Raises:
            ProgramRefused: there is no such step.
        """


@dataclass(frozen=True)
class Program:
    """What one sample does to one file.

    Args:
        kind: name of the kind of the file, `"image"`.
        file: its key, relative to the dataset's root.
        made_for: what the kind says of the file that the numbers were drawn for: of a picture width, height, mode.
            Whoever runs the program sees that the file is still such a one.
        steps: in order.
        table: name of the table that the values behind the last step are looked up in; "" for none.

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
        """As msgpack: [kind, file, made for, steps, table]."""
        row = [self.kind, self.file, self.made_for, self.steps, self.table]
        packed: bytes = msgpack.packb(row, unicode_errors="surrogateescape")
        return packed

    @staticmethod
    def unpack(packed: bytes) -> Program:
        """The inverse of `pack`; of whatever bytes, in bounded time. Whether a kind takes it, `check` says.

        Raises:
            ProgramRefused: it is not a packed program, or too long.
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
        """Its steps without what varies from sample to sample: what costs are learnt for.

        Raises:
            ProgramRefused: the kind knows no such step.
        """
        return tuple(fixed for step in self.steps if (fixed := kind.fixed(step)) is not None)


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("it can hold no maps or extensions")


_unpackb = partial(
    msgpack.unpackb, use_list=False, unicode_errors="surrogateescape", object_hook=_refuse, ext_hook=_refuse
)
"""What it gives can be hashed, down to the last value."""


def whole_numbers(values: Sequence[Any], least: int, most: int) -> bool:
    """Whether all are ints, none of them a bool, within bounds."""
    return all(type(value) is int and least <= value <= most for value in values)


def finite_numbers(values: Sequence[Any], most: float) -> bool:
    """Whether all are ints or floats, finite, and no larger than `most`, whatever their sign."""
    return all(type(value) in (int, float) and abs(value) <= most for value in values)
