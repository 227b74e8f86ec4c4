"""A seed means the boxes, flips and streams that it has always meant."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from PIL import UnidentifiedImageError

from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.part import Region
from sophon_loader.kinds.image.primitives import Shape
from sophon_loader.kinds.image.source import PictureFile, PixelsWanted
from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.described import begin_on_size
from sophon_loader.pipeline.randomness import Draw
from tests.support.drawn_numbers import RELEASES, as_call, calls, streams, transforms

STORED: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "drawn.json").read_text())
DRAWS = [(Draw(*row[:4]), (row[4], row[5])) for row in STORED["draws"]]


def skip_in_other_releases() -> None:
    here = {name: version(name) for name in RELEASES}
    if here != STORED["versions"]:
        pytest.skip(f"the numbers were drawn by {STORED['versions']}, here is {here}")


def test_every_op_has_the_seed_and_the_numbers_that_it_had() -> None:
    assert [streams(draw) for draw, _ in DRAWS] == STORED["streams"]


def test_every_preset_was_drawn() -> None:
    skip_in_other_releases()
    assert list(transforms()) == list(STORED["calls"])


def test_programs_have_the_boxes_and_flips_that_ops_had() -> None:
    skip_in_other_releases()
    compared = 0
    for title, transform in transforms().items():
        chain = chain_of(transform)
        for (draw, size), stored in zip(DRAWS, STORED["calls"][title], strict=True):
            reached, found, region = of_program(chain, draw, size)
            wanted = [call for call in stored if call[0] < reached]
            assert found == wanted, (title, draw, size)
            if len(wanted) > 1 and [call[:2] for call in wanted[:2]] == [[1, "crop"], [1, "resize"]]:
                left, top, right, bottom = wanted[0][2:]
                inside = left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]
                assert not inside or region == Region(left, top, right - left, bottom - top), (title, draw, size)
            compared += len(wanted)
    stored = sum(len(row) for rows in STORED["calls"].values() for row in rows)
    assert compared > 0.9 * stored, f"{compared} of {stored}"


def of_program(chain: Chain, draw: Draw, size: tuple[int, int]) -> tuple[int, list[list[Any]], Region]:
    """How many ops are recorded, what they do to the picture, and what the program reads of it."""
    with chain.isolated():
        begun = begin_on_size(chain, *size, draw)
        source = PictureFile(b"", Shape(*size, "RGB"))
        source.sealed = True
        image: Deferred = deferred(source)
        stage, steps = 1, image.steps
        found: list[list[Any]] = []
        while stage < min(chain.deferrable, chain.image_stages):
            try:
                made = chain.run(image, stage, stage + 1, draw)
            except (PixelsWanted, UnidentifiedImageError):  # it looks at pixels, or at what the file says of them
                break
            if not isinstance(made, Deferred):
                break
            done = [step for step in made.steps[len(steps) :] if step[0] in ("crop", "resize", "transpose")]
            found += [[stage, *as_call(step)] for step in done]
            image, stage, steps = made, stage + 1, made.steps
    assert begun.steps == steps[: len(begun.steps)]
    return stage, found, begun.region


@pytest.mark.parametrize("title", list(STORED["calls"])[:29:4])
def test_ops_on_decoded_pictures_draw_them_too(title: str) -> None:
    skip_in_other_releases()
    chain = chain_of(transforms()[title])
    assert [calls(chain, *one) for one in DRAWS[:6]] == STORED["calls"][title][:6]
