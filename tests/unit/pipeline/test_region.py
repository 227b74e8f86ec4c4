"""Crops taken apart: the op itself, `finish` behind `locate`, and a run on a part of the image all agree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import transforms as timm
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.chain import Chain, Located, Window, chain_of
from sophon_loader.pipeline.op import GENERATORS, Region
from sophon_loader.pipeline.randomness import Draw, preserved
from tests.property.strategies import draws, images
from tests.support.op_examples import same_value, value_of

CROPS: dict[str, Any] = {}
for _prefix, _module in (("v1", v1), ("v2", v2)):
    CROPS |= {
        f"{_prefix}.RandomResizedCrop": _module.RandomResizedCrop(16),
        f"{_prefix}.RandomResizedCrop, narrow": _module.RandomResizedCrop((9, 7), (0.5, 1.0), (0.1, 0.2)),
        f"{_prefix}.RandomResizedCrop, never fits": _module.RandomResizedCrop(8, (5.0, 6.0), (0.8, 1.2)),
        f"{_prefix}.RandomResizedCrop, never fits, flat": _module.RandomResizedCrop(8, (5.0, 6.0), (3.0, 4.0)),
        f"{_prefix}.RandomCrop": _module.RandomCrop((13, 8)),
        f"{_prefix}.RandomCrop, padding": _module.RandomCrop(12, padding=2),
        f"{_prefix}.RandomCrop, if needed": _module.RandomCrop((9, 20), pad_if_needed=True),
        f"{_prefix}.CenterCrop": _module.CenterCrop((11, 14)),
        f"{_prefix}.CenterCrop, even": _module.CenterCrop(8),
    }
CROPS |= {
    "timm.RandomResizedCrop": timm.RandomResizedCropAndInterpolation(16),
    "timm.RandomResizedCrop, random": timm.RandomResizedCropAndInterpolation((9, 7), interpolation="random"),
    "timm.RandomResizedCrop, never fits": timm.RandomResizedCropAndInterpolation(8, (5.0, 6.0), (0.8, 1.2)),
    "timm.CenterCropOrPad": timm.CenterCropOrPad([11, 14]),
}
every_crop = pytest.mark.parametrize("name", sorted(CROPS))


@pytest.fixture(autouse=True, scope="module")
def _keep_generators() -> Iterator[None]:
    with preserved(GENERATORS):
        yield


def _result(chain: Chain, image: Image.Image, draw: Draw) -> Any:
    """What the op gives, or the text of its refusal."""
    try:
        return chain.run(image, 1, 2, draw)
    except ValueError as error:
        return str(error.args[0]).partition("\n")[0]


def _finish(chain: Chain, image: Image.Image, region: Region) -> Any:
    crop = chain.ops[1].crop
    assert crop is not None
    return crop.finish(image, region)


@every_crop
@given(images(min_side=1, max_side=30), draws())
def test_finishing_the_located_region_equals_the_op(name: str, image: Image.Image, draw: Draw) -> None:
    chain = chain_of(CROPS[name])
    expected = _result(chain, image, draw)
    region = chain.region(*image.size, draw)
    if region is None:
        return
    assert Region(0, 0, *image.size).contains(region)
    assert same_value(_finish(chain, image, region), expected)


@every_crop
@given(images(min_side=1, max_side=30), draws(), st.data())
def test_a_part_of_the_image_that_holds_the_region_is_enough(
    name: str, image: Image.Image, draw: Draw, data: st.DataObject
) -> None:
    chain = chain_of(CROPS[name])
    expected = _result(chain, image, draw)
    region = chain.region(*image.size, draw)
    if region is None:
        return
    left, top = data.draw(st.integers(0, region.left)), data.draw(st.integers(0, region.top))
    right = data.draw(st.integers(region.left + region.width, image.width))
    bottom = data.draw(st.integers(region.top + region.height, image.height))
    window = Window(Region(left, top, right - left, bottom - top), *image.size)
    part = image.crop((left, top, right, bottom))
    assert same_value(chain.run(part, 1, 2, draw, window=window), expected)


@pytest.mark.parametrize("prefix", ["v1", "v2"])
@given(st.integers(1, 40), st.integers(1, 40), draws())
def test_regions_are_known_exactly_where_the_op_neither_pads_nor_refuses(
    prefix: str, width: int, height: int, draw: Draw
) -> None:
    def known(name: str) -> bool:
        return chain_of(CROPS[f"{prefix}.{name}"]).region(width, height, draw) is not None

    assert known("RandomResizedCrop")
    assert known("RandomCrop") == (width >= 8 and height >= 13)
    assert not known("RandomCrop, padding")
    assert known("RandomCrop, if needed") == (width >= 20 and height >= 9)
    assert known("CenterCrop") == (width >= 14 and height >= 11)


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("size", [(17, 21), (16, 21), (17, 20), (12, 15), (1, 1)])
def test_the_whole_image_and_every_border_are_regions_too(module: Any, size: tuple[int, int]) -> None:
    width, height = size
    image = value_of("pil", height, width)
    whole = chain_of(module.RandomCrop((height, width)))
    assert whole.region(width, height, Draw(0, 0, 0)) == Region(0, 0, width, height)
    one_less = chain_of(module.RandomCrop((max(1, height - 1), max(1, width - 1))))
    seen = set()
    for index in range(40):
        region = one_less.region(width, height, Draw(0, 0, index))
        assert region is not None
        seen.add((region.left, region.top))
        assert same_value(_finish(one_less, image, region), one_less.run(image, 1, 2, Draw(0, 0, index)))
    assert len(seen) == (4 if width > 1 else 1)


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_the_regions_of_a_release_stay(module: Any) -> None:
    """The region decides the batch: see test_randomness."""
    chain = chain_of(module.RandomResizedCrop(224))
    regions = [chain.region(500, 375, Draw(0, 0, index)) for index in range(3)]
    assert regions == [Region(33, 10, 423, 364), Region(118, 21, 272, 306), Region(129, 38, 181, 225)]


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_locating_reads_no_pixels(module: Any) -> None:
    """A size of a terapixel is fine, since nothing of that size is made."""
    for transform in (module.RandomResizedCrop(8), module.RandomCrop(8), module.CenterCrop(8)):
        assert chain_of(transform).region(1 << 20, 1 << 20, Draw(0, 0, 0)) is not None


@pytest.mark.parametrize(
    ("inner", "inside"),
    [
        ((2, 3, 10, 20), True),
        ((11, 22, 1, 1), True),
        ((1, 3, 5, 5), False),
        ((2, 2, 5, 5), False),
        ((3, 3, 10, 5), False),
        ((2, 4, 5, 20), False),
    ],
)
def test_a_region_contains_another_up_to_its_borders(inner: tuple[int, int, int, int], inside: bool) -> None:
    assert Region(2, 3, 10, 20).contains(Region(*inner)) == inside


def test_a_region_is_shifted_to_another_origin() -> None:
    assert Region(7, 9, 2, 3).shifted(5, 6) == Region(2, 3, 2, 3)


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_an_empty_region_is_none(module: Any) -> None:
    """A ratio no image can have makes the op fall back to a crop of no columns, which it then refuses."""
    chain = chain_of(module.RandomResizedCrop(8, (5.0, 6.0), (0.1, 0.2)))
    assert chain.region(30, 2, Draw(0, 0, 0)) is None


def test_a_part_without_the_region_is_refused() -> None:
    chain = chain_of(v2.CenterCrop(8))
    window = Window(Region(0, 0, 10, 20), 20, 20)
    with pytest.raises(PipelineError, match=r"part kept must hold the region .*left=6"):
        chain.run(value_of("pil", 20, 10), 1, 2, Draw(0, 0, 0), window=window)


@pytest.mark.parametrize("transform", [v2.Resize(8), v2.CenterCrop(30)])
def test_an_op_without_a_region_does_not_run_on_a_part(transform: Any) -> None:
    window = Window(Region(0, 0, 10, 20), 20, 20)
    with pytest.raises(PipelineError, match="must have a known region"):
        chain_of(transform).run(value_of("pil", 20, 10), 1, 2, Draw(0, 0, 0), window=window)


def test_only_the_first_op_behind_decode_has_a_region() -> None:
    assert chain_of(None).region(20, 20, Draw(0, 0, 0)) is None
    assert chain_of(v1.Compose([v1.Pad(1), v1.RandomCrop(8)])).region(20, 20, Draw(0, 0, 0)) is None


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
def test_what_is_known_is_not_drawn_again(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, draw, image = chain_of(module.RandomResizedCrop(8)), Draw(1, 2, 3), value_of("pil", 60, 80)
    whole = Window(Region(0, 0, 80, 60), 80, 60)
    with chain.isolated():
        located = chain.located(80, 60, draw)
        expected = chain.run(image, 1, 2, draw)
        crop = chain.crop
        assert crop is not None
        monkeypatch.setattr(type(crop), "locate", lambda *arguments: pytest.fail("it is known"))
        assert chain.located(80, 60, draw, located) is located
        assert same_value(chain.run(image, 1, 2, draw, window=whole, located=located), expected)


def test_what_is_known_of_a_picture_of_another_size_is_drawn_anew() -> None:
    chain, draw = chain_of(v1.RandomResizedCrop(8)), Draw(1, 2, 3)
    with chain.isolated():
        small, large = chain.located(80, 60, draw), chain.located(800, 600, draw)
        assert chain.located(800, 600, draw, small) == large != small


def test_the_share_of_a_picture_that_is_read() -> None:
    assert Located(40, 30, Region(3, 3, 20, 15)).share == 0.25
    assert Located(40, 30, None).share == 1.0
