"""How often a picture's file is decoded, by whom, for all that is done with it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFile, ImageOps

from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.fused_picture import DecodeTally
from sophon_loader.kinds.image.selftest import trusted
from sophon_loader.kinds.image.source import Rereads, source_of
from sophon_loader.native import fused
from tests.support.picture_files import file_of

FILE = file_of("jpeg 4:2:0", 300, 200)
pytestmark = pytest.mark.skipif(fused.FINISH not in fused.checked(), reason="our C is not here")


def opened(rereads: Rereads | None = None) -> Deferred:
    """The picture of `FILE`, of which our C may make the pixels."""
    source = source_of(FILE)
    assert source is not None
    source.tally, source.rereads = DecodeTally(), rereads
    return deferred(source)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who has decoded, in turn: "C", or "Pillow" for a file that it loads."""
    trusted()  # whose pictures are decoded when a process asks for the first time
    found: list[str] = []
    decode, load = fused.decode, ImageFile.ImageFile.load

    def by_c(*arguments: Any) -> Any:
        pixels = decode(*arguments)
        found.extend(["C"] if pixels is not None else [])
        return pixels

    def by_pillow(image: ImageFile.ImageFile) -> Any:
        found.extend(["Pillow"] if image.tile else [])
        return load(image)

    monkeypatch.setattr(fused, "decode", by_c)
    monkeypatch.setattr(ImageFile.ImageFile, "load", by_pillow)
    return found


def as_read(image: Image.Image) -> Image.Image:
    """As most code opens it: the opened image is gone, its copy is kept."""
    return image.convert("RGB")


def both_kept(image: Image.Image) -> list[Any]:
    copy = image.convert("RGB")
    return [np.array(copy), np.array(image), copy.tobytes(), image.getpixel((5, 7))]


def views(image: Image.Image) -> list[Any]:
    copy = image.convert("RGB")
    return [
        np.asarray(copy.crop((10, 20, 110, 100)).resize((32, 32), Image.Resampling.BILINEAR)),
        np.asarray(ImageOps.mirror(copy.crop((50, 5, 200, 180)))),
    ]


@pytest.mark.parametrize(
    "use",
    [
        lambda image: ImageEnhance.Contrast(as_read(image)).enhance(1.3).tobytes(),
        lambda image: ImageEnhance.Color(as_read(image)).enhance(0.4).tobytes(),
        lambda image: ImageEnhance.Color(ImageEnhance.Contrast(as_read(image)).enhance(1.3)).enhance(0.4).tobytes(),
        lambda image: ImageOps.autocontrast(as_read(image)).tobytes(),
        lambda image: [np.array(image).tolist(), np.asarray(image).tolist(), image.tobytes()],
        lambda image: as_read(image).reduce((3, 2), (10, 20, 200, 191)).convert("L").tobytes(),
        lambda image: [as_read(image).resize((40, 30)).tobytes(), image.resize((30, 40)).tobytes()],
        both_kept,
        lambda image: [band.tobytes() for band in as_read(image).crop((5, 6, 90, 70)).split()],
        lambda image: [as_read(image).getchannel(1).tobytes(), image.getchannel("R").tobytes()],
        lambda image: ImageOps.expand(as_read(image).crop((5, 6, 90, 70)), (1, 2, 3, 4), 7).tobytes(),
        lambda image: ImageOps.pad(as_read(image), (90, 90), color=3).tobytes(),
    ],
)
def test_a_picture_is_decoded_once_and_by_c(decodes: list[str], use: Callable[[Image.Image], Any]) -> None:
    with Image.open(io.BytesIO(FILE)) as plain:
        plain.load()
        expected = use(plain)
    decodes.clear()
    assert str(use(opened())) == str(expected)
    assert decodes == ["C"]


def test_of_a_picture_that_is_read_again_all_is_decoded_and_of_the_next_one_at_once(decodes: list[str]) -> None:
    with Image.open(io.BytesIO(FILE)) as plain:
        expected = views(plain)
    rereads, found = Rereads(), []
    for _ in range(3):
        decodes.clear()
        assert all(np.array_equal(one, other) for one, other in zip(views(opened(rereads)), expected, strict=True))
        found.append(list(decodes))
    assert found == [["C", "C"], ["C"], ["C"]]


def test_where_pictures_are_read_once_again_only_a_crop_is_decoded() -> None:
    rereads = Rereads()
    for _ in range(3):
        views(opened(rereads))
    assert rereads.likely
    for _ in range(8):
        opened(rereads).crop((10, 20, 110, 100)).tobytes()
    assert not rereads.likely


def test_what_is_kept_of_a_part_of_the_picture_is_right_everywhere() -> None:
    """Pillow makes all of a resized image from a part of the file, although only a crop of it is read."""
    source = source_of(FILE)
    assert source is not None
    resized = deferred(source).resize((150, 100))
    resized.crop((50, 50, 60, 60)).tobytes()
    with Image.open(io.BytesIO(FILE)) as plain:
        assert resized == plain.resize((150, 100))


def test_an_array_of_a_picture_is_a_view_of_its_pixels_and_cannot_be_written_to() -> None:
    image = opened()
    first, second = np.asarray(image), np.asarray(image)
    assert not first.flags.writeable and np.shares_memory(first, second)
    again = np.array(image)
    again[:] = 0
    assert again.flags.writeable and np.array_equal(first, np.asarray(image)) and first.any()
