"""Hypothesis strategies: pipelines over the whole registry, small images, files of images, and draws."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.chain import Chain, chain_of
from sophon_loader.pipeline.randomness import Draw
from tests.support.op_examples import EXAMPLES, GREY_READY, Example

_STAGES = ("pil", "u8", "float", "norm")


def draws() -> st.SearchStrategy[Draw]:
    """Any seed an int can be, any epoch, any index."""
    small = st.integers(0, 3)
    seeds = small | st.integers(-(1 << 63), (1 << 64) - 1)
    return st.builds(Draw, seeds, small | st.integers(0, 1 << 40), small | st.integers(0, 1 << 40))


@st.composite
def images(draw: st.DrawFn, min_side: int = 8, max_side: int = 48) -> Image.Image:
    """Small RGB images: noise, a gradient with some noise, or one colour."""
    width, height = draw(st.integers(min_side, max_side)), draw(st.integers(min_side, max_side))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, columns = np.mgrid[0:height, 0:width]
    slope = np.stack([rows * 5, columns * 4, rows + columns], axis=-1) % 256
    noise = rng.integers(0, 256, (height, width, 3))
    look = draw(st.sampled_from(["noise", "gradient", "colour"]))
    pixels = {"noise": noise, "gradient": slope + noise // 32, "colour": np.broadcast_to(noise[:1, :1], noise.shape)}
    return Image.fromarray(np.clip(pixels[look], 0, 255).astype(np.uint8))


@st.composite
def image_files(draw: st.DrawFn, min_side: int = 8, max_side: int = 48) -> bytes:
    """The bytes of JPEG (any sampling, progressive or not) and PNG files of `images`, RGB or grey."""
    image = draw(images(min_side, max_side))
    if draw(st.integers(0, 4)) == 0:
        image = image.convert("L")
    file = io.BytesIO()
    if draw(st.integers(0, 3)) == 0:
        image.save(file, "PNG", compress_level=1)
    else:
        subsampling = draw(st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]))
        quality, progressive = draw(st.integers(20, 98)), draw(st.booleans())
        image.save(file, "JPEG", quality=quality, subsampling=subsampling, progressive=progressive)
    return file.getvalue()


_GREY_NORMALIZE = [Example("v2.Normalize", lambda: v2.Normalize([0.5], [0.25]), ("float",), "norm")]


@st.composite
def chains(draw: st.DrawFn, max_per_stage: int = 2) -> Chain:
    """Valid pipelines of any registered ops, v1 and v2 mixed, nested containers included; all describable.

    They start from a decoded image of 8 px or more a side, and end as PIL image, uint8, or float tensor.
    """
    walk = _Walk(draw)
    last = draw(st.sampled_from(_STAGES[::-1]))
    while True:
        for _ in range(draw(st.integers(0, max_per_stage))):
            walk.step()
        if _STAGES.index(walk.kind) >= _STAGES.index(last):
            break
        walk.convert()
    return chain_of(_composed(draw, walk.transforms))


class _Walk:
    """The transforms drawn so far, and what they make of an image."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.transforms: list[Any] = []
        self.kind = "pil"
        self.grey = False

    def step(self) -> None:
        """Add an op, or a container of ops, that keeps the kind."""
        if not self.grey and self.draw(st.integers(0, 4)) == 0:
            self.transforms.append(self._container(2))
        else:
            self._add(self._choose([e for e in self._usable() if e.gives is None]))

    def convert(self) -> None:
        """Add an op that leads to a later stage, or now and then back to a PIL image."""
        here = _STAGES.index(self.kind)
        usable = [e for e in self._usable() if e.gives is not None]
        self._add(self._choose([e for e in usable if e.gives == "pil" or _STAGES.index(e.gives) > here]))

    def _usable(self) -> list[Example]:
        usable = [e for e in EXAMPLES if self.kind in e.takes and not e.contiguous]
        if not self.grey:
            return usable
        ready = [e for e in usable if e.name.split(".")[1] in GREY_READY]
        return ready + [e for e in _GREY_NORMALIZE if self.kind in e.takes]

    def _choose(self, examples: list[Example]) -> Example:
        # First a class and then a construction, so that a class with many does not crowd the others out.
        name = self.draw(st.sampled_from(sorted({e.name for e in examples})))
        return self.draw(st.sampled_from([e for e in examples if e.name == name]))

    def _add(self, example: Example) -> None:
        if example.size is not None:
            self.transforms.append(v2.Resize(example.size))
        self.transforms.append(example.make())
        if example.size is not None:
            self.transforms.append(v2.Resize((11, 12)))
        self.kind = example.gives or self.kind
        self.grey = self.grey or example.grey

    def _container(self, levels: int) -> Any:
        steps = [self._inner(levels) for _ in range(self.draw(st.integers(1, 3)))]
        kind = self.draw(st.sampled_from(["RandomApply", "RandomChoice", "RandomOrder", "Compose"]))
        container = getattr(self.draw(st.sampled_from([v1, v2])), kind)
        if kind == "RandomApply":
            return container(steps, p=self.draw(st.sampled_from([0.3, 0.5, 1.0])))
        if kind == "RandomChoice" and self.draw(st.booleans()):
            return container(steps, p=[self.draw(st.sampled_from([1, 0.3, 2.5])) for _ in steps])
        return container(steps)

    def _inner(self, levels: int) -> Any:
        if levels > 1 and self.draw(st.integers(0, 3)) == 0:
            return self._container(levels - 1)
        return self._choose([e for e in self._usable() if e.keeps]).make()


def _composed(draw: st.DrawFn, transforms: list[Any]) -> Any:
    """The transforms as a user may write them: one Compose, one within another, or none at all."""
    if not transforms:
        return draw(st.sampled_from([None, nn.Sequential()]))
    compose = draw(st.sampled_from([v1.Compose, v2.Compose]))
    split = draw(st.integers(0, len(transforms) - 1))
    if split and draw(st.booleans()):
        return compose([*transforms[:split], v1.Compose(transforms[split:])])
    return compose(transforms)
