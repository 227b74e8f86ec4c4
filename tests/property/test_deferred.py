"""An image whose pixels are not made yet is, to whatever is done to it, the image itself."""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1

from sophon_loader.kinds.image.deferred import deferred
from sophon_loader.kinds.image.fused_picture import DecodeTally
from sophon_loader.kinds.image.source import PictureFile, source_of
from sophon_loader.pipeline.chain import Chain, chain_of, decode
from sophon_loader.pipeline.described import run_from_file
from sophon_loader.pipeline.randomness import Draw
from tests.property.picture_chains import picture_transforms
from tests.property.strategies import chains, draws
from tests.support.drawn import FULL, examples
from tests.support.outcomes import Outcome, numpy_state, outcome_of
from tests.support.picture_files import KINDS, SOUND, file_of
from tests.support.pillow_code import Code, all_codes

_SIDES = st.sampled_from([1, 2, 7, 16, 33, 75, 130])
_SLOW: dict[str, Any] = {"suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@st.composite
def files(draw: st.DrawFn, kinds: Any = tuple(KINDS)) -> bytes:
    """Files of all kinds and sizes; most of them JPEG."""
    kind = draw(st.sampled_from(kinds) | st.sampled_from([kind for kind in kinds if "jpeg" in kind]))
    return file_of(kind, draw(_SIDES | st.just(75)), draw(_SIDES | st.just(58)), draw(st.integers(0, 3)))


def described(chain: Chain, data: bytes, draw: Draw, *, lazily: bool, tally: DecodeTally | None = None) -> Outcome:
    """A pipeline on a file, and what its generators are behind it."""

    def run() -> Any:
        with chain.isolated():
            if lazily:
                value = run_from_file(chain, data, len(chain), draw, tally=tally)
            else:
                value = chain.run(data, 0, len(chain), draw)
            return value, torch.get_rng_state(), numpy_state(), random.getstate()

    outcome = outcome_of(run)
    # What fails is run once more, op by op, to say where it does; so what it warns of may come twice.
    return outcome if outcome.error is None else replace(outcome, warned=list(dict.fromkeys(outcome.warned)))


def see_described(chain: Chain, data: bytes, draw: Draw) -> None:
    """The pixels being made by Pillow, and by C of our own where that can."""
    op_by_op = described(chain, data, draw, lazily=False)
    assert described(chain, data, draw, lazily=True) == op_by_op
    assert described(chain, data, draw, lazily=True, tally=DecodeTally()) == op_by_op


@examples(500, **_SLOW)
@given(transforms=picture_transforms(), data=files(), draw=draws())
def test_a_described_pipeline_gives_what_it_gives_op_by_op(transforms: list[Any], data: bytes, draw: Draw) -> None:
    see_described(chain_of(v1.Compose(transforms)), data, draw)


@examples(100, **_SLOW)
@given(chain=chains(), data=files(), draw=draws())
def test_so_does_one_of_all_registered_ops(chain: Chain, data: bytes, draw: Draw) -> None:
    see_described(chain, data, draw)


@examples(400, **_SLOW)
@given(transforms=picture_transforms(), data=files(SOUND), seed=st.integers(0, 99))
def test_transforms_give_on_a_deferred_image_what_they_give_on_the_image(
    transforms: list[Any], data: bytes, seed: int
) -> None:
    def run(image: Any) -> Any:
        for one in transforms:
            image = one(image)
        return image

    assert outcome_of(lambda: run(deferred_rgb(data)), seed) == outcome_of(lambda: run(decode(data)), seed)


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_each_kind_are_cropped_with_the_warnings_that_they_are_decoded_with(kind: str) -> None:
    chain = chain_of(v1.Compose([v1.CenterCrop(16), v1.ToTensor()]))
    see_described(chain, file_of(kind), Draw(0, 0, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_uses_pillow_gives_on_a_deferred_image_what_it_gives_on_the_image(kind: str) -> None:
    data, codes = file_of(kind), all_codes()
    if outcome_of(lambda: source_of(data)).value is None:
        return  # no program knows the file, or nobody can open it
    whole = outcome_of(lambda: opened(data))
    for name in codes if FULL else list(codes)[list(KINDS).index(kind) % 30 :: 30]:
        print(name)  # the last one is shown when it fails
        on_deferred = of_code(codes[name], lambda: deferred(known(data)))
        if whole.error is None:
            on_image = of_code(codes[name], lambda: opened(data))
        elif on_deferred.error == whole.error:
            continue
        else:  # nobody has looked at pixels, which is when the error comes
            on_image = of_code(codes[name], lambda: without_pixels(data))
        now, late = on_image.warned, whole.warned  # what decoding warns of comes with the first look
        assert on_deferred in [replace(on_image, warned=warned) for warned in (now, late + now, now + late)]


def of_code(code: Code, make: Callable[[], Image.Image]) -> Outcome:
    """Of what it does to an image that is made before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = make()
    return outcome_of(lambda: code(image))


def known(data: bytes) -> PictureFile:
    source = source_of(data)
    assert source is not None
    return source


def opened(data: bytes) -> Image.Image:
    """The picture of a file as a plain image."""
    with Image.open(io.BytesIO(data)) as file:
        file.load()
        return file._new(file.im)


def without_pixels(data: bytes) -> Image.Image:
    """What can be told of a file's picture before it is decoded."""
    width, height, mode = known(data).shape
    image = Image.new(mode, (width, height))
    with suppress(OSError):
        image.info = dict(Image.open(io.BytesIO(data)).info)
    return image


def deferred_rgb(data: bytes) -> Image.Image:
    """As op 0 of a pipeline makes it, with its pixels not made yet wherever programs know the file."""
    source = source_of(data)
    if source is None:
        return decode(data)
    image = deferred(source)
    return image if source.shape.mode == "RGB" else image.convert("RGB")
