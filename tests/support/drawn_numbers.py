"""The numbers that pipelines draw, in tests/data/drawn.json: what they were before images could be deferred.

    python -m tests.support.drawn_numbers tests/data/drawn.json

The file was written by commit b79a358, whose code ran each op on a decoded image: there with this module and
bench/program_cases.py beside its own. It stays as it is: a seed of a user's run means these numbers. Crops, resizes and
transposes are what Pillow was called with, so every op's code has drawn and decided them itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import models

from bench.program_cases import PIPELINES
from bench.record import write_json
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, op_seed, preserved, seed_generators

DRAWS = 50
SEEDS = (0, 7, -1, 1 << 40, (1 << 64) - 3)
SIZES = ((500, 375), (375, 500), (640, 427), (256, 256), (90, 61), (231, 700))
"""Of pictures, px."""
POSITIONS = 10
"""Of ops, for which seeds are stored."""
RELEASES = ("torch", "torchvision", "timm")
"""What may draw other numbers in another release."""

Call = tuple[Any, ...]
"""What an op did to an image: `crop` and its box, `resize` with size and filter, or `transpose` and its method."""


def draws() -> list[tuple[Draw, tuple[int, int]]]:
    """Which random numbers are looked at, and for a picture of which size, px."""
    numbers = range(DRAWS)
    of = [Draw(SEEDS[n % 5], n % 3 * (n + 1), n * n * 7919, n % 4 if n % 3 == 0 else 0) for n in numbers]
    return [(draw, SIZES[n % len(SIZES)]) for n, draw in enumerate(of)]


def transforms() -> dict[str, Any]:
    """By title: the pipelines of docs/programs.md, and every classification preset of torchvision's weights once."""
    weights = (one for name in sorted(models.list_models()) for one in models.get_model_weights(name))
    presets = {repr(made): made for made in (one.transforms() for one in weights)}
    named = {" ".join(text.split()): made for text, made in presets.items() if text.startswith("ImageClassification")}
    return {**{one.title: one.make() for one in PIPELINES}, **named}


def as_call(step: Call) -> Call:
    """A recorded crop, resize or transpose."""
    assert step[0] != "resize" or step[4:] == (None, None)
    return step[:4] if step[0] == "resize" else step


def calls(chain: Chain, draw: Draw, size: tuple[int, int]) -> list[list[Any]]:
    """What each op does to a decoded image of this size: [position, call ...]."""
    found: list[list[Any]] = []
    position = 1

    def passed(stage: int, _: Any) -> None:
        nonlocal position
        position = stage

    image = Image.linear_gradient("L").convert("RGB").resize(size)
    with chain.isolated(), recorded(lambda call: found.append([position, *call])):
        chain.run(image, 1, chain.image_stages, draw, after=passed)
    return found


@contextmanager
def recorded(see: Callable[[Call], None]) -> Iterator[None]:
    """Context in which `see` is told of crops, resizes and transposes of Pillow's images that change something."""
    names = ("crop", "resize", "transpose")
    own = {name: getattr(Image.Image, name) for name in names}
    within = False

    def told(name: str) -> Callable[..., Any]:
        @wraps(own[name])
        def method(image: Image.Image, *arguments: Any, **named: Any) -> Any:
            nonlocal within
            if not within and (call := call_of(image, name, *arguments, **named)):
                see(call)
            before, within = within, True
            try:
                return own[name](image, *arguments, **named)
            finally:
                within = before

        return method

    for name in names:
        setattr(Image.Image, name, told(name))
    try:
        yield
    finally:
        for name in names:
            setattr(Image.Image, name, own[name])


def call_of(image: Image.Image, name: str, first: Any, resample: Any = Image.Resampling.BICUBIC) -> Call | None:
    """A call in numbers; None for one that gives a copy."""
    if name == "transpose":
        return name, int(first)
    if name == "crop":
        box = tuple(map(round, first))
        return None if box == (0, 0, *image.size) else (name, *box)
    return None if tuple(first) == image.size else (name, *map(int, first), int(resample))


def streams(draw: Draw) -> list[list[int]]:
    """Of each position the op's seed, and the first number of each generator under it."""
    found = []
    with preserved(GENERATORS):
        for position in range(POSITIONS):
            seed = op_seed(draw, position)
            seed_generators(GENERATORS, seed)
            first = int(torch.randint(1 << 31, ())), int(np.random.randint(1 << 31)), random.getrandbits(31)
            found.append([seed, *first])
    return found


def drawn() -> dict[str, Any]:
    """All of it."""
    every = draws()
    chains = {title: chain_of(made) for title, made in transforms().items()}
    return {
        "versions": {name: version(name) for name in RELEASES},
        "draws": [[draw.seed, draw.epoch, draw.index, draw.occurrence, *size] for draw, size in every],
        "streams": [streams(draw) for draw, _ in every],
        "calls": {title: [calls(chain, *one) for one in every] for title, chain in chains.items()},
    }


if __name__ == "__main__":
    write_json(Path(sys.argv[1]), drawn())
