"""Any bytes as a program that an agent is asked to run on small real pictures, sound and damaged.

An input is a byte that chooses the picture, and the packed program. Below 128 the program is made for that picture,
whatever it says: else nearly all changed inputs would be refused by that alone.
"""

from __future__ import annotations

import io
import resource
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache

import msgpack
from PIL import Image

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.execute import begin_program, check, image_at, part_of_begun
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.primitives import BANDS, Shape, output, run
from sophon_loader.kinds.image.segments import SEGMENTS, steps_until
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.kinds.image.source import PictureFile, StepsOnPicture, source_of
from sophon_loader.programs.program import Limits, Program, Step
from storage_agent.workers.program_choice import (
    LAST_MADE,
    ProgramAppraisers,
    look_at_program,
    segments_of,
    signature_of,
)
from tests.support.picture_files import SOUND, file_of
from tests.support.program_examples import REFUSED, SIZE, TAKEN

FEW = Limits(px=20_000, work=2e7, nbytes=1e6)
MAX_CPU_S = 1.0
"""CPU seconds of one input; the work of `FEW` takes a fiftieth of that."""
MAX_GROWTH_KB = 64 << 10
"""Growth of this process's largest memory by one input, KiB."""
KINDS = (
    *("jpeg 4:4:4", "jpeg 4:2:0", "jpeg L", "jpeg CMYK", "jpeg progressive", "jpeg restarts", "jpeg turned"),
    *("png RGB", "png RGBA", "png LA", "png P", "webp", "webp alpha", "gif", "tiff"),
    *("jpeg scan damaged", "jpeg cut short", "jpeg cut short, progressive", "png cut short", "no picture", "empty"),
)
"""Pictures of `SIZE`, and the same once more at four times its sides: parts can be cut out of those JPEG files."""


@cache
def pictures() -> tuple[tuple[bytes, bool], ...]:
    """Each file, and True if it is sound."""
    trusted()  # before anything is measured
    return tuple((file_of(kind, side * SIZE[0], side * SIZE[1]), kind in SOUND) for side in (1, 4) for kind in KINDS)


@cache
def _shapes() -> tuple[Shape | None, ...]:
    """What programs on each file are made for; None where it has none."""
    found: list[Shape | None] = []
    for file, _ in pictures():
        source = None
        with suppress(OSError):
            source = source_of(file)
        found.append(None if source is None else source.shape)
    return tuple(found)


def run_on_file(data: bytes) -> None:
    """Do all that a worker does for the program: check, look, cut a part out, run it up to each segment, try it."""
    number = data[0] if data else 0
    file, is_sound = pictures()[number % len(pictures())]
    try:
        program = Program.unpack(data[1:])
        if number < 128 and (shape := _shapes()[number % len(pictures())]) is not None:
            program = replace(program, made_for=tuple(shape))
        check(program, FEW)
        look_at_program(file, program)
    except ProgramRefused as refused:
        assert len(str(refused)) < 1000
        return
    since_s, largest_kb = time.thread_time(), _largest_kb()
    try:
        _done(program, file)
    except OSError:  # a damaged file
        assert not is_sound
    assert time.thread_time() - since_s < MAX_CPU_S, program
    assert _largest_kb() - largest_kb < MAX_GROWTH_KB, program


def _largest_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _done(program: Program, file: bytes) -> None:
    """See that each way of a worker's gives what Pillow makes of the whole picture."""
    with Image.open(io.BytesIO(file)) as opened:
        begun = begin_program(program, file)
        part = part_of_begun(begun, keep_metadata=True)
        opened.load()
        whole = opened.copy()
    stages: list[Image.Image] = []
    for segment in SEGMENTS[1 : LAST_MADE + 1]:
        wanted = run(whole, program.steps[: steps_until(segment, program.steps)])
        found = image_at(begin_program(program, file), segment)
        assert (found.size, found.mode, found.tobytes()) == (wanted.size, wanted.mode, wanted.tobytes()), segment
        stages.append(wanted)
    if isinstance(part, PartOfFile):
        of_part = StepsOnPicture(PictureFile(part.data, begun.source.shape, part=part), program.steps)
        assert image_at(of_part, SEGMENTS[LAST_MADE]).tobytes() == stages[-1].tobytes()
    assert not ProgramAppraisers().of(signature_of(begun)).knows
    tried: list[tuple[int, bytes]] = []
    segments_of(program).run(file, lambda stage, image: tried.append((stage, image.tobytes())))
    assert tried == [(stage + 1, image.tobytes()) for stage, image in enumerate(stages)]


def seeds() -> Iterator[bytes]:
    """Each step on some of the pictures that it is for, two runs of steps that shrink one, and refused steps."""
    for number, shape in enumerate(_shapes()):
        if shape is None:
            continue
        choice = bytes([number])
        for one in TAKEN[number % 16 :: 16]:
            if output(one.step, shape) is not None:
                yield choice + Program("image", "", shape, (one.step,)).pack()
        width, height, mode = shape
        crop: Step = ("crop", width // 4, height // 4, width // 2, height - 3)
        resize: Step = ("resize", 9, 12, 0, (1, 0, 5.5, 7), None)
        shrunk = crop, ("transpose", 2), resize, ("convert", "L"), ("crop", -1, 0, 9, 9)
        yield choice + Program("image", "", shape, shrunk).pack()
        tables: Step = ("point", bytes(range(256))[::-1] * BANDS[mode])
        beyond = ("crop", width // 2, -9, 2 * width, height // 2), tables, ("crop", width // 4, 2, width // 2, 9)
        yield choice + Program("image", "", shape, beyond).pack()
        reduced = ("transpose", 6), ("reduce", 2, 3), ("crop", 2, 1, 6, 7), ("transpose", 4), ("crop", -4, -4, 0, 3)
        yield choice + Program("image", "", shape, reduced[: 1 if mode in ("LA", "RGBA") else 5]).pack()
    for several in REFUSED.values():
        row = ["image", "", (*SIZE, "RGB"), several[-3:], ""]
        with suppress(OverflowError):  # an int that no packed program can have
            yield b"\0" + msgpack.packb(row, unicode_errors="surrogateescape")
