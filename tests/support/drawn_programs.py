"""Requests for programs, drawn by chance: sound ones, ones that were changed a little, and ones that mean harm."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import msgpack
from PIL import UnidentifiedImageError

from sophon_loader.encodings.catalogue import ANY_PART, encoding_names
from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.execute import begin_program, check
from sophon_loader.kinds.image.primitives import Shape, cost, output
from sophon_loader.kinds.image.source import source_of
from sophon_loader.pipeline.software import pixels_by
from sophon_loader.programs.program import Limits, Program, Step
from sophon_loader.wire.messages import CHEAPEST, FetchPrograms, ProgramItem
from tests.fuzz.mutations import mutated
from tests.support.program_examples import INFINITE, NAN, NO_PICTURES, REFUSED, TAKEN, TOO_MUCH

SOUND_PX, SOUND_WORK = 300 * 300, 1e7
"""Limits of each step and each program that is drawn to run: a few milliseconds."""
NUMBERS: tuple[Any, ...] = (
    NAN,
    INFINITE,
    -INFINITE,
    0,
    -1,
    1e9,
    1e300,
    1 << 20,
    (1 << 63) - 1,
    None,
    True,
    "1",
    (),
)
"""Odd values for a box, a size or anything else."""
PRICES: tuple[list[float], ...] = (
    *([0.0] * 4, [1e9] * 4, [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1e9], [5e-324, 1e9, 0.0, 0.0]),
    *([1.0, 1e3, 1e3, 0.0], [0.0, 0.0, 0.0, 5e-324]),
)
BAD_PRICES: tuple[list[float], ...] = ([], [1.0] * 3, [1.0] * 5, [NAN] * 4, [INFINITE] * 4, [-1.0] * 4, [1e300] * 4)
SEGMENTS = (*(0, 1, 2, 3) * 12, 4, 5, 63, 64)
"""Cuts of items; from 4 on there is no such segment at an agent."""
OUTDATED = 100.0
"""The fourth price beyond which an agent has fewer cores for a worker than the choice was meant for."""
PARTS = ("roi-jpeg", "roi-lepton")
UNSEEN = Program("image", "", (), ())
"""Stands for the program of an item that is answered with its file, so that nobody looks at the program."""
NO_STAGE = 65
"""A cut that no message can have."""


class DrawnRequest(NamedTuple):
    """A request, and what has to come of it.

    Args:
        message: what to send.
        runs: for each item, the program that the agent must take, `UNSEEN`, or None where it must refuse it.
        is_malformed: True if the message as a whole must be refused.
    """

    message: FetchPrograms
    runs: list[Program | None]
    is_malformed: bool


class DrawnPrograms:
    """Draws requests.

    Args:
        files: what the agent serves, by key; none of them damaged.
        limits: of the agent.
        seed: of what is drawn.
    """

    def __init__(self, files: Mapping[str, bytes], limits: Limits, seed: int) -> None:
        self._rng = random.Random(seed)
        self._files = files
        self._keys = sorted(files)
        self._limits = limits
        self._shapes = {key: _shape_of(data) for key, data in files.items()}
        self._pictures = [key for key in self._keys if self._shapes[key] is not None]
        self._mutated = mutated([self._sound(key).pack() for key in self._pictures for _ in range(8)], seed)
        self._id = 0

    def request(self, most: int = 64) -> DrawnRequest:
        """Draw the next request.

        Args:
            most: items.
        """
        rng = self._rng
        keys = [rng.choice(self._keys)] * most if rng.random() < 0.05 else [rng.choice(self._keys) for _ in range(most)]
        keys = keys[: rng.randint(1, most)]
        items = [self._item(key) for key in keys]
        allowed = [*encoding_names(), ANY_PART]
        if rng.random() < 0.1:
            allowed = rng.sample(allowed, rng.randint(0, len(allowed))) + rng.choice([[], ["none such", "\udcff"]])
        prices, is_malformed = rng.choice(PRICES), False
        if rng.random() < 0.03:
            prices = rng.choice(BAD_PRICES)
            is_malformed = len(prices) > 3 or any(item.encoding == CHEAPEST for item in items)
        if rng.random() < 0.01:
            items[-1], is_malformed = items[-1]._replace(cut=NO_STAGE), True
        software = pixels_by() if rng.random() < 0.95 else rng.choice(["", "pillow 1.0", "\udcff"])
        message = FetchPrograms("d", rng.random() < 0.1, rng.random() < 0.05, allowed, items, prices, software)
        runs = [] if is_malformed else [self._outcome(item, message) for item in items]
        return DrawnRequest(message, runs, is_malformed)

    def _item(self, key: str) -> ProgramItem:
        rng, nbytes = self._rng, len(self._files[key])
        self._id += 1
        if rng.random() < 0.03:
            nbytes = rng.choice([0, nbytes - 1, nbytes + 1, 1 << 30])
        encoding = "pixels" if rng.random() < 0.5 else rng.choice(["none such", CHEAPEST, "file", *encoding_names()])
        return ProgramItem(self._id, rng.choice(SEGMENTS), encoding, key, nbytes, self._packed(key))

    def _outcome(self, item: ProgramItem, message: FetchPrograms) -> Program | None:
        """What must come of an item, see `DrawnRequest`: an agent refuses what the checks of this process refuse."""
        if item.cut == 0 and item.encoding == "file":
            return UNSEEN
        if item.encoding == CHEAPEST and message.prices[3] > OUTDATED:
            return UNSEEN
        cut, data = item.cut, self._files[item.key]
        if cut and message.pixels_by != pixels_by():
            if item.encoding != CHEAPEST:
                return None
            cut = 0
        begins = cut > 0 or item.encoding == CHEAPEST
        begins = begins or (item.encoding in PARTS and ANY_PART in message.allowed)
        try:
            program = Program.unpack(item.program)
            check(program, self._limits)
            if item.cut > 3 or item.nbytes != len(data):
                return None
            if begins:
                begin_program(program, data)
        except ProgramRefused:
            return None
        return program

    def _packed(self, key: str) -> bytes:
        rng = self._rng
        how = rng.random()
        if how < 0.55:
            return self._sound(key).pack()
        if how < 0.7:
            return next(self._mutated)
        program = self._sound(key)
        if how < 0.8:
            program = replace(program, steps=self._with_odd_numbers(program.steps))
        elif how < 0.85:
            program = replace(program, made_for=rng.choice([*NO_PICTURES, (40, 30, "RGB"), (1 << 20, 1 << 20, "RGB")]))
        elif how < 0.93:
            program = replace(program, steps=(*program.steps, rng.choice(REFUSED[rng.choice([*REFUSED])])))
        elif how < 0.97:
            made_for, steps = rng.choice([*TOO_MUCH.values()])
            program = replace(program, steps=steps, made_for=made_for if rng.random() < 0.5 else program.made_for)
        else:
            return rng.choice([b"", b"\xc1", b"\x95" * 16_000, rng.randbytes(rng.randint(1, 200)), bytes(16_385)])
        try:
            return program.pack()
        except (OverflowError, ValueError, UnicodeEncodeError):  # what msgpack cannot write cannot come
            return msgpack.packb(["sound", "", (), [["melt", 1]] * rng.randint(0, 40), "table"])

    def _with_odd_numbers(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        made = [list(step) for step in steps]
        step = self._rng.choice(made)
        place = self._rng.randrange(1, len(step)) if len(step) > 1 else 0
        inner = step[place]
        if isinstance(inner, tuple) and inner and self._rng.random() < 0.8:
            at = self._rng.randrange(len(inner))
            step[place] = (*inner[:at], self._rng.choice(NUMBERS), *inner[at + 1 :])
        else:
            step[place] = self._rng.choice(NUMBERS)
        return tuple(map(tuple, made))

    def _sound(self, key: str) -> Program:
        """A program that its picture takes, at little cost."""
        rng = self._rng
        image = self._shapes[key] or Shape(40, 30, "RGB")
        made_for, work = image, 0.0
        steps: list[Step] = []
        for _ in range(rng.randint(1, 5)):
            left, top = rng.randrange(-9, image.width), rng.randrange(-9, image.height)
            crop: Step = ("crop", left, top, rng.randint(left + 1, image.width), rng.randint(top + 1, image.height))
            resize: Step = (
                "resize",
                rng.randint(1, 200),
                rng.randint(1, 200),
                rng.randrange(6),
                None,
                rng.choice([None, 2.0]),
            )
            step = rng.choice([crop, resize, ("transpose", rng.randrange(7)), rng.choice(TAKEN).step])
            made = output(step, image)
            if made is None or made.px > SOUND_PX:
                continue
            work += cost(step, image, made).work
            if work > SOUND_WORK:
                break
            steps.append(step)
            image = made
        steps = steps or [("crop", 0, 0, 1, 1)]
        return Program("image", "", tuple(made_for), tuple(steps))


def _shape_of(data: bytes) -> Shape | None:
    """What programs on a file are made for; None where it has none."""
    with suppress(UnidentifiedImageError):
        source = source_of(data)
        return None if source is None else source.shape
    return None
