"""Programs as bytes: what goes in comes out, and whatever else comes in is refused. Their signatures."""

from __future__ import annotations

import reprlib
from typing import Any

import msgpack
import pytest

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.programs.program import (
    MAX_PROGRAM_NBYTES,
    MAX_PROGRAM_VALUES,
    MAX_STEPS,
    Program,
    Step,
    finite_numbers,
    whole_numbers,
)

CROP: Step = ("crop", 10, 20, 234, 244)
RESIZE: Step = ("resize", 224, 160, 2, (0.5, 0.0, 99.25, 80.0), None)
POINT: Step = ("point", bytes(range(256)) * 3)
SOUND = Program("image", "cat/1.jpg", (500, 375, "RGB"), (CROP, RESIZE, ("transpose", 0), POINT), "imagenet")


def row(**changes: Any) -> bytes:
    """A packed program, with other values in it."""
    return msgpack.packb([*({**vars(SOUND), **changes}).values()])


def of_size(nbytes: int) -> bytes:
    """A packed program of this many bytes."""
    return row(file="f" * (nbytes - len(row(file="f" * 1000)) + 1000))


def of_values(count: int) -> bytes:
    """A packed program of this many values, itself included."""
    return row(made_for=(), steps=(("crop", *[0] * (count - 8)),))


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        SOUND,
        Program("image", "", (), ()),
        Program("image", "é/\udcff.jpg", (1, 1, "L"), (CROP,)),  # a name on disk that is no UTF-8
        Program("sound", "a.wav", (44100,), (("any", -1, 2.5, None, True, "text", b"bytes", ((1,),)),)),
    ],
    ids=["sound", "empty", "odd name", "other kind"],
)
def test_what_is_packed_comes_back(program: Program) -> None:
    packed = program.pack()
    assert isinstance(packed, bytes) and Program.unpack(packed) == program
    assert hash(Program.unpack(packed)) == hash(program)


def test_the_packed_form_is_pinned() -> None:
    assert Program("image", "a", (3, 2, "L"), (("crop", 0, 0, 1, 1),)).pack() == bytes.fromhex(
        "95a5696d616765a161930302a14c9195a463726f7000000101a0"
    )


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_most", "over"),
    [
        (of_size(MAX_PROGRAM_NBYTES), of_size(MAX_PROGRAM_NBYTES + 1)),
        (of_values(MAX_PROGRAM_VALUES), of_values(MAX_PROGRAM_VALUES + 1)),
        (row(steps=(CROP,) * MAX_STEPS), row(steps=(CROP,) * (MAX_STEPS + 1))),
    ],
    ids=["bytes", "values", "steps"],
)
def test_programs_up_to_each_limit_are_read(at_most: bytes, over: bytes) -> None:
    assert Program.unpack(at_most).file
    with pytest.raises(ProgramRefused, match=r"must .* at most"):
        Program.unpack(over)


MALFORMED = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut at once": b"\x95",
    "cut": row()[:-1],
    "more behind": row() + b"\0",
    "2**32 values": b"\xdd\xff\xff\xff\xff",
    "2**32 bytes": b"\xc6\xff\xff\xff\xff",
    "values that never come": b"\x95\xa0\xa0\xdc\x0f\xf0",
    "deep": b"\x91" * 3000,
    "deep in its steps": b"\x95\xa0\xa0\x90" + b"\x91" * 1000 + b"\xc0\xa0",
}


@pytest.mark.parametrize("packed", MALFORMED.values(), ids=list(MALFORMED))
def test_what_is_no_msgpack_of_a_program_is_refused(packed: bytes) -> None:
    with pytest.raises(ProgramRefused, match="must"):
        Program.unpack(packed)


@pytest.mark.parametrize(
    "value", [None, True, 1, 2.5, "five!", b"five!", [], [1, 2, 3, 4, 5], {}, dict.fromkeys("abcde")]
)
def test_another_value_is_no_program(value: Any) -> None:
    with pytest.raises(ProgramRefused):
        Program.unpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "changes",
    [
        *({name: value} for name in ("kind", "file", "table") for value in (None, 1, b"image", [], {})),
        *({name: value} for name in ("made_for", "steps") for value in (None, 1, "ab", b"ab", {}, {"a": 1})),
        *({"steps": [step]} for step in ("crop", 1, None, [], [1], [None], [b"crop"], [["crop"]], [{}], {"crop": 1})),
        {"more": 1},
    ],
    ids=str,
)
def test_each_part_has_to_be_of_its_type(changes: dict[str, Any]) -> None:
    with pytest.raises(ProgramRefused):
        Program.unpack(row(**changes))


@pytest.mark.parametrize("odd", [{}, {"a": 1}, [[{}]], msgpack.ExtType(5, b"ab")], ids=str)
@pytest.mark.parametrize("where", ["made for", "step"])
def test_maps_and_extensions_are_refused_wherever_they_are(where: str, odd: Any) -> None:
    """No value of a program that has been unpacked is unhashable."""
    changes = {"made_for": (500, 375, odd)} if where == "made for" else {"steps": (("filter", odd),)}
    with pytest.raises(ProgramRefused, match="no maps"):
        Program.unpack(row(**changes))


# --- signatures -------------------------------------------------------------------------------------------------------


def test_a_signature_has_what_all_samples_share() -> None:
    blur: Step = ("filter", "gaussian", 0.3, 0.3)
    steps = (
        ("convert", "RGB"),
        CROP,
        RESIZE,
        ("transpose", 0),
        POINT,
        blur,
        ("transform", 9, 9, 0, (1.0,) * 6, 0, None),
    )
    program = Program("image", "1.jpg", (500, 375, "L"), steps)
    wanted = (("convert", "RGB"), ("crop",), ("resize", 224, 160, 2), ("filter", "gaussian"))
    assert program.signature(ImageKind()) == wanted
    assert Program("image", "2.jpg", (9, 9, "L"), ()).signature(ImageKind()) == ()


def test_a_signature_of_unknown_steps_is_refused() -> None:
    with pytest.raises(ProgramRefused, match=r"must be one of .*'crop'.* got 'melt'"):
        Program("image", "1.jpg", (9, 9, "L"), (CROP, ("melt", 1))).signature(ImageKind())


def test_a_signature_of_whatever_was_unpacked_can_be_a_key() -> None:
    for step in (("resize",), ("crop", "a"), ("filter", [[[1]]]), ("convert", None), ("filter", b"gaussian")):
        assert {Program.unpack(row(steps=(step,))).signature(ImageKind()): 1}


# --- numbers ----------------------------------------------------------------------------------------------------------

HUGE, NAN, INFINITE = 1 << 4000, float("nan"), float("inf")


@pytest.mark.parametrize(
    "odd", [True, "1", b"1", None, (), {}, NAN, INFINITE, -INFINITE, HUGE, -HUGE, 11, -11], ids=reprlib.repr
)
def test_what_is_no_number_in_range(odd: Any) -> None:
    assert not whole_numbers([0, odd], -10, 10)
    assert not finite_numbers([0, odd], 10)


def test_numbers_in_range() -> None:
    assert whole_numbers([-10, 0, 10], -10, 10) and not whole_numbers([1.0], -10, 10)
    assert finite_numbers([-10, 0.5, 10], 10.0) and whole_numbers([], 0, 0) and finite_numbers([], 0)
