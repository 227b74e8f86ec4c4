"""Programs of any form: they are refused with `ProgramRefused`, or they run to just what was said of them before."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from torchvision import transforms as v1

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.deferred import Deferred, open_deferred
from sophon_loader.kinds.image.execute import execute
from sophon_loader.kinds.image.kind import ImageKind
from sophon_loader.kinds.image.primitives import BANDS, PRIMITIVES, Shape, cost, output, run
from sophon_loader.pipeline.chain import chain_of, decode
from sophon_loader.pipeline.described import begin_on_file
from sophon_loader.pipeline.randomness import Draw
from sophon_loader.programs.program import MAX_STEPS, Limits, Program, Step
from tests.property.picture_chains import picture_transforms
from tests.property.strategies import draws
from tests.property.test_deferred import deferred_rgb, files
from tests.support.drawn import examples
from tests.support.outcomes import outcome_of
from tests.support.picture_files import SOUND
from tests.support.program_examples import REFUSED, SIZE, TAKEN, see_it_runs_as_said, taken

SMALL = Limits(px=5000, work=2e7, nbytes=1e6)
_SLOW: dict[str, Any] = {"suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
_NAMES = st.sampled_from([*PRIMITIVES, "gaussian", "box", "unsharp", "rank", "mode", "kernel", *BANDS, "P", ""])
_INTS = st.integers(-3, 40) | st.integers(-(1 << 63), (1 << 64) - 1) | st.sampled_from([1 << 20, -(1 << 20), 768])
_FLOATS = st.floats(-3, 40) | st.floats()
_VALUES = st.recursive(
    st.none() | st.booleans() | _INTS | _FLOATS | _NAMES | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)
"""Whatever msgpack can carry, leaning to what a step may have."""
_KNOWN = [one.step for one in TAKEN] + [step for steps in REFUSED.values() for step in steps]


@st.composite
def nearly_steps(draw: st.DrawFn) -> Any:
    """A step that some image takes, or took before a value of it was changed, added or lost; or no step at all."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return draw(_VALUES)
    if how == 1:
        return (draw(st.sampled_from(list(PRIMITIVES))), *draw(st.lists(_VALUES, max_size=7)))
    step = draw(st.sampled_from([one.step for one in TAKEN] if how > 3 else _KNOWN))
    if how > 6:
        return step
    place = draw(st.integers(0, len(step)))
    value = draw(st.integers(0, 40) | _INTS | _FLOATS | _VALUES)
    return draw(st.sampled_from([(*step[:place], value, *step[place + 1 :]), step[:place], (*step[:place], value)]))


@st.composite
def made_fors(draw: st.DrawFn) -> Any:
    """A picture, mostly."""
    mode = draw(st.sampled_from(["RGB", *BANDS]))
    match draw(st.integers(0, 5)):
        case 0 | 1 | 2:
            return (*SIZE, mode)
        case 3 | 4:
            return draw(st.integers(1, 40)), draw(st.integers(1, 40)), mode
    return draw(st.tuples(_VALUES, _VALUES, _VALUES) | _VALUES | st.tuples(st.just(9), st.just(9), _VALUES))


# --- any programs -----------------------------------------------------------------------------------------------------


@examples(300, **_SLOW)
@given(st.binary(max_size=60) | st.builds(msgpack.packb, _VALUES))
def test_any_bytes_are_refused_or_a_program(packed: bytes) -> None:
    taken(packed, SMALL)


@examples(500, **_SLOW)
@given(made_fors(), st.lists(nearly_steps(), max_size=4), st.lists(_VALUES, max_size=1))
def test_nearly_programs_are_refused_or_run_as_said(made_for: Any, steps: list[Any], more: list[Any]) -> None:
    try:
        packed = msgpack.packb(["image", "f", made_for, steps, *(more or [""])], unicode_errors="surrogateescape")
    except (OverflowError, UnicodeEncodeError):  # of an int or a text that no packed program can have
        assume(False)
    program = taken(packed, SMALL)
    if program is not None:
        see_it_runs_as_said(program)


@examples(500, **_SLOW)
@given(made_fors(), st.lists(nearly_steps(), max_size=4))
def test_a_kind_refuses_steps_that_were_never_packed(made_for: Any, steps: list[Any]) -> None:
    """As long as each has a name."""
    named = [step for step in steps if isinstance(step, tuple) and step and isinstance(step[0], str)]
    if isinstance(made_for, (tuple, list)):
        try:
            took = ImageKind().check(tuple(made_for), named, SMALL)
        except ProgramRefused:
            return
        assert took.work <= SMALL.work


@st.composite
def sound_programs(draw: st.DrawFn) -> Program:
    """Programs that suit their picture, of steps of all kinds."""
    image = Shape(draw(st.integers(1, 50)), draw(st.integers(1, 50)), draw(st.sampled_from(list(BANDS))))
    made_for, steps, work = image, [], float(image.px)
    for _ in range(draw(st.integers(0, 6))):
        fitting = [one.step for one in TAKEN if one.step[0] != "resize" or one.step[4] is None]
        fitting = [step for step in fitting if output(step, image) is not None]
        step: Step = draw(st.sampled_from(fitting))
        made = output(step, image)
        assert made is not None
        work += cost(step, image, made).work
        if made.px > 5000 or work > SMALL.work:
            break
        steps.append(step)
        image = made
    return Program("image", "a/é.jpg", tuple(made_for), tuple(steps))


@examples(500, **_SLOW)
@given(sound_programs())
def test_sound_programs_run_as_said(program: Program) -> None:
    assert Program.unpack(program.pack()) == program or any(list in map(type, step) for step in program.steps)
    assert taken(program.pack(), SMALL) is not None
    see_it_runs_as_said(program)


# --- recorded ones ----------------------------------------------------------------------------------------------------


@examples(300, **_SLOW)
@given(transforms=picture_transforms(), data=files(SOUND), seed=st.integers(0, 99))
def test_what_an_image_has_recorded_is_a_program_that_makes_it(transforms: list[Any], data: bytes, seed: int) -> None:
    """Up to each point where pixels are looked at."""
    recorded: list[Any] = []

    def record() -> Any:
        image: Any = deferred_rgb(data)
        for one in transforms:
            if isinstance(image, Deferred):
                recorded.append(image.copy())
            image = one(image)
        if isinstance(image, Deferred):
            recorded.append(image.copy())

    outcome_of(record, seed)
    for image in recorded:
        source = image._node.source
        program = Program("image", "f", tuple(source.shape), image.steps)
        assert Program.unpack(program.pack()) == program and len(program.steps) <= MAX_STEPS
        took = ImageKind().check(program.made_for, program.steps, Limits())
        assert took.work > 0 and program.signature(ImageKind()) is not None
        assert run(source.whole(), program.steps) == image


@examples(200, **_SLOW)
@given(transforms=picture_transforms(), data=files(SOUND), draw=draws())
def test_so_is_what_a_pipeline_has_recorded(transforms: list[Any], data: bytes, draw: Draw) -> None:
    chain = chain_of(v1.Compose(transforms))
    with chain.isolated():
        begun = begin_on_file(chain, data, draw)
        if begun is None:
            return
        program = Program.unpack(begun.program("é/\udcff").pack())
        assert program == begun.program("é/\udcff") and program.table == ""
        ImageKind().check(program.made_for, program.steps, Limits())
        assert run(begun.source.whole(), program.steps) == chain.run(data, 0, begun.stage, draw)


@examples(300, **_SLOW)
@given(transforms=picture_transforms(), data=files(SOUND), seed=st.integers(0, 99))
def test_a_program_run_on_its_file_gives_what_the_ops_give(transforms: list[Any], data: bytes, seed: int) -> None:
    """In one piece, and cut at each segment."""
    programs: list[Program] = []

    def record() -> None:
        image: Any = open_deferred(data)
        image = image if image.mode == "RGB" else image.convert("RGB")
        for one in (*transforms, None):
            if not isinstance(image, Deferred):
                break
            programs.append(Program.unpack(image.program("f").pack()))
            image = None if one is None else one(image)

    def plainly() -> Any:
        image: Any = decode(data)
        for one in transforms[: len(programs) - 1]:
            image = one(image)
        made.append(image)

    made: list[Any] = []
    outcome_of(record, seed)
    if programs:
        outcome_of(plainly, seed)
        whole = execute(programs[-1], data)
        assert whole == made[0]
        for segment in ("file", "decoded", "shrunk", "8-bit"):
            assert execute(programs[-1], execute(programs[-1], data, stop=segment), start=segment) == whole
