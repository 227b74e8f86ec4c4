"""Primitives of pictures: what is in range, the size and the cost of what they make, and all of it known before."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from PIL import Image, ImageFilter

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.primitives import (
    BANDS,
    PRIMITIVES,
    SUPPORTS,
    Shape,
    check,
    converts,
    cost,
    filter_of,
    numbers_of,
    output,
    run,
    taps,
)
from sophon_loader.programs.program import Limits, Program, Step
from tests.support.pictures import picture
from tests.support.program_examples import (
    BICUBIC,
    BILINEAR,
    LANCZOS,
    NEAREST,
    NO_PICTURES,
    REFUSED,
    REFUSED_OF_MODE,
    SIZE,
    TAKEN,
    TOO_MUCH,
    Taken,
    noise,
)

MAX_CHECK_NBYTES = 100_000
"""Of Python's own memory, to check any program; a message with it is most of that."""


@pytest.fixture(autouse=True, scope="module")
def _known_conversions() -> None:
    for before in BANDS:
        for after in BANDS:
            converts(before, after)


def pixels_made() -> int:
    """How many images Pillow has made so far."""
    return int(Image.core.get_stats()["new_count"])


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", TAKEN, ids=str)
def test_what_a_step_makes_is_known_before(one: Taken) -> None:
    assert output(one.step, one.before) == one.after
    took = check(one.before, [one.step], Limits())
    assert took.work >= one.after.px and took.nbytes >= one.before.nbytes + one.after.nbytes
    made = run(noise(one.before), [one.step])
    assert (*made.size, made.mode) == one.after


def test_each_primitive_has_an_example() -> None:
    assert {one.step[0] for one in TAKEN} == set(PRIMITIVES)


@pytest.mark.parametrize("one", TAKEN, ids=str)
def test_a_packed_step_does_the_same(one: Taken) -> None:
    program = Program.unpack(Program("image", "f", one.before, (one.step,)).pack())
    ImageKind().check(program.made_for, program.steps, Limits())
    assert run(noise(one.before), program.steps) == run(noise(one.before), [one.step])
    assert hash(program.signature(ImageKind())) is not None


def test_a_program_runs_step_by_step() -> None:
    steps: list[Step] = [("crop", -3, 2, 30, 25), ("resize", 9, 8, BICUBIC, None, None), ("transpose", 2)]
    wanted = picture(*SIZE, 1).crop((-3, 2, 30, 25)).resize((9, 8)).transpose(Image.Transpose.ROTATE_90)
    assert run(picture(*SIZE, 1), steps) == wanted


@pytest.mark.parametrize(
    "one",
    [
        *(ImageFilter.GaussianBlur(2), ImageFilter.GaussianBlur((1, 2)), ImageFilter.BoxBlur(3)),
        *(ImageFilter.UnsharpMask(2, 100, 1), ImageFilter.RankFilter(3, 1), ImageFilter.MedianFilter(3)),
        *(ImageFilter.MinFilter(3), ImageFilter.MaxFilter(5), ImageFilter.ModeFilter(3), ImageFilter.EMBOSS()),
        *(ImageFilter.Kernel((3, 3), range(9)), ImageFilter.Kernel((5, 5), [1] * 25, 7, 3)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_pillow_s_filters_as_numbers(one: Any) -> None:
    numbers = numbers_of(one)
    assert numbers is not None and output(("filter", *numbers), Shape(*SIZE, "RGB"))
    assert picture(*SIZE, 1).filter(filter_of(numbers)) == picture(*SIZE, 1).filter(one)


def test_other_filters_have_no_numbers() -> None:
    class Own(ImageFilter.GaussianBlur):
        pass

    assert numbers_of(Own(2)) is None and numbers_of(ImageFilter.Color3DLUT(2, [0.0] * 24)) is None


def test_a_kernel_of_no_known_size_has_no_numbers() -> None:
    one = ImageFilter.EMBOSS()
    vars(one)["filterargs"] = (3, 5), 1, 0, (1,) * 15
    assert numbers_of(one) is None


# --- what is refused --------------------------------------------------------------------------------------------------


def refused_at_no_cost(made_for: tuple[Any, ...], steps: Sequence[Step]) -> None:
    """It is refused, before an image or much of anything is made; packed, too, if it can be."""

    def refused(checked: Callable[[], Any]) -> None:
        before = pixels_made()
        tracemalloc.start()
        try:
            with pytest.raises(ProgramRefused, match="must"):
                checked()
            assert tracemalloc.get_traced_memory()[1] < MAX_CHECK_NBYTES
        finally:
            tracemalloc.stop()
        assert pixels_made() == before

    def unpacked_and_checked() -> None:
        program = Program.unpack(packed)
        check(program.made_for, program.steps, Limits())

    refused(lambda: check(made_for, steps, Limits()))
    with suppress(OverflowError):  # of an int that no packed program can have
        packed = msgpack.packb(["image", "f", made_for, steps, ""], unicode_errors="surrogateescape")
        refused(unpacked_and_checked)


@pytest.mark.parametrize("name", REFUSED)
def test_steps_with_numbers_out_of_range_are_refused(name: str) -> None:
    for step in REFUSED[name]:
        print(step)  # the last one is shown when it fails
        assert output(step, Shape(*SIZE, "RGB")) is None
        refused_at_no_cost((*SIZE, "RGB"), [step])


@pytest.mark.parametrize(("mode", "step"), REFUSED_OF_MODE, ids=str)
def test_steps_that_do_not_suit_the_mode_are_refused(mode: str, step: Step) -> None:
    assert output(step, Shape(*SIZE, mode)) is None
    refused_at_no_cost((*SIZE, mode), [step])


def test_what_is_no_picture_is_refused() -> None:
    for made_for in NO_PICTURES:
        print(made_for)
        refused_at_no_cost(made_for, [("crop", 0, 0, 9, 9)])


@pytest.mark.parametrize("name", TOO_MUCH)
def test_programs_that_take_too_much_are_refused(name: str) -> None:
    made_for, steps = TOO_MUCH[name]
    image = Shape(*made_for)
    for step in steps:
        made = output(step, image)
        assert made is not None, "each step by itself is in range"
        image = made
    refused_at_no_cost(made_for, steps)


def test_a_refused_step_is_named() -> None:
    with pytest.raises(ProgramRefused, match=r"step 1 must be one of .* for Shape\(width=9.*got \('transpose', 9\)"):
        check((40, 30, "RGB"), [("crop", 0, 0, 9, 9), ("transpose", 9)], Limits())


def test_modes_that_nobody_knows_are_not_remembered() -> None:
    converts.cache_clear()
    for number in range(100):
        assert output(("convert", f"mode {number}"), Shape(*SIZE, "RGB")) is None
    assert converts.cache_info().currsize == 0


# --- limits -----------------------------------------------------------------------------------------------------------

PROGRAM: list[Step] = [("crop", 0, 0, 20, 20), ("resize", 60, 50, BICUBIC, None, None), ("filter", "box", 1, 1)]


def test_what_takes_as_much_as_allowed_is_taken() -> None:
    took = check((*SIZE, "RGB"), PROGRAM, Limits())
    assert check((*SIZE, "RGB"), PROGRAM, Limits(60 * 50, took.work, took.nbytes)) == took
    for limits in (
        Limits(60 * 50 - 1, took.work, took.nbytes),
        Limits(60 * 50, took.work - 1, took.nbytes),
        Limits(60 * 50, took.work, took.nbytes - 1),
    ):
        with pytest.raises(ProgramRefused, match="must stay within"):
            check((*SIZE, "RGB"), PROGRAM, limits)
    with pytest.raises(ProgramRefused, match="more by its picture"):
        check((*SIZE, "RGB"), [], Limits(px=SIZE[0] * SIZE[1] - 1))


def test_work_adds_up_and_memory_does_not() -> None:
    once, twice = (check((*SIZE, "L"), [("filter", "rank", 3, 1)] * times, Limits()) for times in (1, 2))
    assert twice.work - once.work == once.work - SIZE[0] * SIZE[1] and twice.nbytes == once.nbytes


# --- work -------------------------------------------------------------------------------------------------------------


def work(step: Step, size: tuple[int, int] = (100, 100), mode: str = "L") -> float:
    before = Shape(*size, mode)
    after = output(step, before)
    assert after is not None
    return cost(step, before, after).work


@pytest.mark.parametrize("resample", SUPPORTS)
@pytest.mark.parametrize("part", [(0, 64), (10, 30.5), (31, 33)])
@pytest.mark.parametrize("side", [1, 5, 20, 64, 100])
def test_an_output_px_is_made_of_no_more_px_than_its_taps(resample: int, part: tuple[float, float], side: int) -> None:
    box = part[0], 0, part[1], 64
    wanted = np.zeros((64, side), bool)
    for ground, one in ((0, 255), (255, 0)):  # what one px of each column changes
        dot = np.full((64, 64), ground, np.uint8)
        flat = Image.fromarray(dot).resize((side, 64), resample, box)
        np.fill_diagonal(dot, one)
        wanted |= np.asarray(Image.fromarray(dot).resize((side, 64), resample, box)) != np.asarray(flat)
    assert wanted.sum(axis=0).max() <= taps(part[1] - part[0], side, resample)


def test_the_work_of_a_resize_goes_by_px_and_taps() -> None:
    small, large = (work(("resize", side, side, BILINEAR, None, None)) for side in (200, 400))
    assert large > 3 * small, "four times the px"
    kinds = [work(("resize", 50, 50, resample, None, None)) for resample in (NEAREST, BILINEAR, BICUBIC, LANCZOS)]
    assert kinds == sorted(kinds) and kinds[0] < kinds[-1] / 3
    assert work(("resize", 10, 10, BICUBIC, None, None), (1000, 1000)) >= 1000 * 1000, "each px is looked at"
    grey, colour = (work(("resize", 90, 90, 3, None, None), (1000, 1000), mode) for mode in ("L", "RGB"))
    assert 2.8 * grey < colour < 3 * grey, "weights are computed once for all bands"
    boxed = [work(("resize", 50, 50, BICUBIC, (0, 0, side, side), None)) for side in (25, 50, 100)]
    assert boxed == sorted(boxed)


TURNED: dict[int, tuple[float, ...]] = {
    0: (1, 0.01, 0, 0.01, 1, 0),
    2: (1, 0.01, 0, 0.01, 1, 0, 1e-5, 0),
    3: (0, 0, 0, 300, 300, 300, 300, 0),
}
"""Numbers of a transform by its method, which move each px a little."""
SLOW: list[tuple[str, Step]] = [
    *(("L", ("filter", "mode", window)) for window in (1, 3, 15)),
    *(("L", ("filter", "rank", window, window * window // 2)) for window in (3, 15)),
    *(("HSV", ("convert", "RGB")), ("RGB", ("convert", "HSV")), ("RGBa", ("convert", "RGBA"))),
    *(("L", ("transform", 300, 300, method, data, NEAREST, None)) for method, data in TURNED.items()),
    *(("L", ("resize", *size, LANCZOS, None, None)) for size in ((1 << 14, 1), (1, 1 << 14))),
]
"""Steps with the most CPU time for a px or for what they compute beforehand, and the mode of what they are for."""


@pytest.mark.parametrize(("mode", "step"), SLOW, ids=str)
def test_a_unit_of_work_takes_about_as_long_in_each_step(mode: str, step: Step) -> None:
    """Else a limit of work is none of time: mode filters of one px took a hundred times as long as they said."""
    before = Shape(*((300, 300) if step[0] == "transform" else (100, 100)), mode)
    plain = Shape(300, 300, "L"), ("resize", 200, 200, LANCZOS, None, None)
    slow_s, plain_s = (fastest_s(*one) / work(one[1], one[0][:2], one[0].mode) for one in ((before, step), plain))
    assert slow_s < 4 * plain_s


def fastest_s(before: Shape, step: Step) -> float:
    image, took_s = noise(before), []
    for _ in range(3):
        since_s = time.thread_time()
        run(image, [step])
        took_s.append(time.thread_time() - since_s)
    return min(took_s)


def test_a_resize_reads_rows_around_its_box() -> None:
    """A row is made of six times its height, where the picture is that high: the first pass goes over all of them."""
    assert work(("resize", 100, 1, LANCZOS, (0, 45, 100, 55), None)) >= 60 * 100 * taps(1, 1, LANCZOS)
    assert work(("resize", 100, 1, LANCZOS, (0, 4, 100, 6), None)) < 60 * 100 * taps(1, 1, LANCZOS)


@pytest.mark.parametrize(
    ("less", "more", "at_least"),
    [
        (("crop", 0, 0, 10, 10), ("crop", 0, 0, 20, 20), 4),
        (("filter", "rank", 3, 1), ("filter", "rank", 15, 1), 20),
        (("filter", "mode", 3), ("filter", "mode", 15), 2),
        (("filter", "kernel", 1, 0, *[1] * 9), ("filter", "kernel", 1, 0, *[1] * 25), 2.5),
        (("filter", "box", 1, 1), ("filter", "box", 1000, 1000), 1),
        (("transform", 9, 9, 0, (1,) * 6, NEAREST, 0), ("transform", 9, 9, 0, (1,) * 6, BICUBIC, 0), 4),
        (("transform", 9, 9, 0, (1,) * 6, BILINEAR, 0), ("transform", 18, 9, 0, (1,) * 6, BILINEAR, 0), 2),
    ],
    ids=str,
)
def test_work_grows_with_what_there_is_to_do(less: Step, more: Step, at_least: float) -> None:
    assert work(more) >= at_least * work(less) > 0


# --- memory -----------------------------------------------------------------------------------------------------------

SPARE_NBYTES = 1_500_000
"""What else a process may touch meanwhile: an allocator's tables, interpreters' objects."""


def told(name: str) -> int:
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(name))


@pytest.fixture
def measurable() -> Iterator[None]:
    if sys.platform != "linux" or not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this host does not say how much memory a process has had")
    yield


SIDE = 1700
LINE = 1 << 20


@pytest.mark.usefixtures("measurable")
@pytest.mark.parametrize(
    ("shape", "step"),
    [
        ((SIDE, SIDE, "RGB"), ("crop", -1, 0, SIDE, SIDE)),
        ((SIDE, SIDE, "RGB"), ("resize", 1000, 2000, BILINEAR, None, None)),
        ((SIDE, SIDE, "RGB"), ("resize", SIDE // 2 - 1, SIDE - 1, BILINEAR, None, 1.0)),
        ((200, SIDE * 20, "RGB"), ("resize", SIDE * 2, 1, BILINEAR, (0, SIDE * 8, 200, SIDE * 9), None)),
        ((SIDE, SIDE, "RGB"), ("reduce", 1, 2)),
        ((SIDE, SIDE, "RGB"), ("transpose", 2)),
        ((SIDE, SIDE, "RGB"), ("convert", "HSV")),
        ((SIDE, SIDE, "L"), ("convert", "CMYK")),
        ((SIDE, SIDE, "RGB"), ("point", bytes(768))),
        ((SIDE, SIDE, "RGB"), ("filter", "gaussian", 1000, 3)),
        ((SIDE, SIDE, "RGB"), ("filter", "unsharp", 1, 100, 1)),
        ((SIDE, SIDE, "RGB"), ("filter", "kernel", 1, 0, *[1] * 9)),
        ((SIDE, SIDE, "RGB"), ("filter", "rank", 3, 0)),
        ((SIDE, SIDE, "RGB"), ("transform", SIDE, SIDE, 0, (1.0, 0.1, 0, 0, 1, 0), NEAREST, 7)),
        ((1, LINE, "RGB"), ("crop", 0, -1, 1, LINE)),
        ((1, LINE, "L"), ("filter", "box", 3, 3)),
        ((LINE, 1, "L"), ("filter", "box", 3, 3)),
        ((1, LINE // 4, "RGB"), ("filter", "rank", 15, 1)),
        ((1, LINE // 2, "RGB"), ("filter", "mode", 1)),
        ((1, LINE // 4, "RGB"), ("resize", 1, LINE // 4, LANCZOS, (0, 0, 1, LINE // 4 - 9), None)),
    ],
    ids=str,
)
def test_a_step_takes_no_more_memory_than_was_said(shape: tuple[int, int, str], step: Step) -> None:
    before = Shape(*shape)
    after = output(step, before)
    assert after is not None
    image = Image.new(before.mode, before[:2])
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # so that nothing is had from what was given back before
    with open("/proc/self/clear_refs", "w") as counters:
        counters.write("5")
    began = told("VmRSS")
    run(image, [step])
    assert told("VmHWM") - began <= cost(step, before, after).nbytes + SPARE_NBYTES
