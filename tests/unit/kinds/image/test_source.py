"""What is decoded of a file: its header, the part that a program reads, or the whole; and that it never shows."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sophon_loader import native
from sophon_loader.kinds.image import source
from sophon_loader.kinds.image.deferred import Deferred, deferred
from sophon_loader.kinds.image.part import WORTH_SHARE, NotCut, PartOfFile, Region, Window
from sophon_loader.kinds.image.primitives import Shape, run
from sophon_loader.kinds.image.segments import read_by
from sophon_loader.kinds.image.source import PictureFile, PixelsWanted, source_of
from sophon_loader.pipeline.chain import chain_of
from sophon_loader.pipeline.described import begin_on_size
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import Draw, preserved
from sophon_loader.programs.program import Step
from tests.property.strategies import draws, images
from tests.support.picture_files import file_of
from tests.support.pictures import picture
from tests.unit.pipeline.crops import CROPS

needs_crop = pytest.mark.skipif(not native.available, reason="the C extension is not built")
SIZE = 300, 200
RGB = Shape(*SIZE, "RGB")


@pytest.fixture(autouse=True, scope="module")
def _keep_generators() -> Iterator[None]:
    with preserved(GENERATORS):
        yield


# --- what a program reads -------------------------------------------------------------------------------------

BILINEAR = 2


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        ((), (0, 0, 300, 200)),
        ((("crop", 10, 20, 110, 70),), (10, 20, 100, 50)),
        ((("crop", -10, 20, 110, 700),), (0, 20, 110, 180)),
        ((("crop", 400, 20, 500, 70),), (299, 20, 1, 50)),
        ((("convert", "L"), ("crop", 10, 20, 110, 70)), (10, 20, 100, 50)),
        ((("crop", 10, 20, 110, 70), ("crop", 5, 5, 25, 15)), (15, 25, 20, 10)),
        ((("transpose", 0), ("crop", 10, 20, 110, 70)), (190, 20, 100, 50)),
        ((("transpose", 1), ("crop", 10, 20, 110, 70)), (10, 130, 100, 50)),
        ((("transpose", 4), ("crop", 10, 20, 60, 120)), (20, 140, 100, 50)),
        ((("crop", 10, 20, 110, 70), ("transpose", 0)), (10, 20, 100, 50)),
        ((("crop", 10, 20, 110, 70), ("resize", 9, 9, BILINEAR, None, None)), (10, 20, 100, 50)),
        ((("resize", 150, 100, BILINEAR, None, None), ("crop", 50, 50, 100, 75)), (97, 97, 106, 56)),
        ((("resize", 150, 100, BILINEAR, None, 2.0), ("crop", 50, 50, 100, 75)), (0, 0, 300, 200)),
        ((("crop", 10, 20, 110, 70), ("reduce", 3, 4), ("crop", 5, 5, 25, 15)), (25, 40, 60, 30)),
        ((("filter", "gaussian", 2, 2), ("crop", 10, 20, 110, 70)), (0, 0, 300, 200)),
        ((("crop", 10, 20, 110, 70), ("filter", "gaussian", 2, 2)), (10, 20, 100, 50)),
    ],
    ids=str,
)
def test_the_rectangle_that_steps_read(steps: Any, wanted: tuple[int, int, int, int]) -> None:
    assert read_by(steps, RGB) == Region(*wanted)


@pytest.mark.parametrize("name", sorted(CROPS))
@given(images(min_side=1, max_side=30), draws(), st.data())
def test_a_part_of_the_picture_that_holds_the_rectangle_is_enough(
    name: str, image: Image.Image, draw: Draw, data: st.DataObject
) -> None:
    """However tight, and wherever it lies."""
    steps = begin_on_size(chain_of(CROPS[name]), *image.size, draw).steps
    shape = Shape(*image.size, "RGB")
    region = read_by(steps, shape)
    assert Region(0, 0, *image.size).contains(region)
    left, top = data.draw(st.integers(0, region.left)), data.draw(st.integers(0, region.top))
    right = data.draw(st.integers(region.left + region.width, image.width))
    bottom = data.draw(st.integers(region.top + region.height, image.height))
    file = io.BytesIO()
    image.crop((left, top, right, bottom)).save(file, "BMP")
    part = PartOfFile(file.getvalue(), Window(Region(left, top, right - left, bottom - top), *image.size))
    got = PictureFile(part.data, shape, part=part).held(steps).run(steps)
    wanted = run(image, steps)
    assert (got.mode, got.size, got.tobytes()) == (wanted.mode, wanted.size, wanted.tobytes())


def part_at(kept: Region) -> PartOfFile:
    file = io.BytesIO()
    picture(kept.width, kept.height, 1).save(file, "BMP")
    return PartOfFile(file.getvalue(), Window(kept, *SIZE))


BEYOND = (600, 0, 700, 150), (-300, 0, -200, 150), (0, 600, 150, 700), (0, -300, 150, -200), (250, 0, 450, 150)
"""Boxes beside a picture of `SIZE`, and one that reaches beyond it."""


@needs_crop
@pytest.mark.parametrize("before", [(), (("transpose", 2),), (("crop", 10, 10, 210, 150),)], ids=str)
@pytest.mark.parametrize("box", BEYOND)
def test_px_beyond_a_picture_are_what_later_steps_make_of_zeros(before: tuple[Step, ...], box: Any) -> None:
    """Though a part is decoded, which ends with the picture."""
    data, inverted = file_of("jpeg 4:2:0", *SIZE), bytes(range(256))[::-1] * 3
    steps: tuple[Step, ...] = (*before, ("crop", *box), ("point", inverted), ("crop", 25, 20, 80, 40))
    one = source_of(data)
    assert not isinstance(one.part_of(one.region(steps)), NotCut)
    found, wanted = one.held(steps).run(steps), run(Image.open(io.BytesIO(data)), steps)
    assert found.size == wanted.size and found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("box", [(9, 20, 100, 70), (10, 19, 100, 70), (10, 20, 111, 70), (10, 20, 100, 71)])
def test_a_part_without_the_rectangle_is_refused(box: tuple[int, int, int, int]) -> None:
    one = PictureFile(b"", RGB, part=part_at(Region(10, 20, 100, 50)))
    assert one.held([("crop", 10, 20, 110, 70)]).kept == Region(10, 20, 100, 50)
    with pytest.raises(ValueError, match="part of the picture must hold Region"):
        one.held([("crop", *box)])


def test_of_a_part_the_whole_picture_cannot_be_made() -> None:
    one = PictureFile(b"", RGB, part=part_at(Region(10, 20, 100, 50)))
    with pytest.raises(ValueError, match="must hold"):
        deferred(one).load()
    with pytest.raises(ValueError, match="must hold"):
        deferred(one).resize((20, 20)).load()


class Large:
    """Stands for a tensor of a training function."""


def test_what_is_kept_of_a_damaged_picture_holds_no_caller() -> None:
    """The picture lives, and fails each time."""

    def train() -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(OSError):
            one.whole()
        return weakref.ref(large)

    one = PictureFile(file_of("jpeg cut short"), RGB)
    for _ in range(2):
        large = train()
        gc.collect()
        assert large() is None
        with pytest.raises(OSError, match="truncated"):
            one.whole()


# --- when a part is decoded -----------------------------------------------------------------------------------


def cuts(monkeypatch: pytest.MonkeyPatch) -> list[Region]:
    """Note what is cut from now on."""
    seen: list[Region] = []
    part_of = source.part_of

    def noting(data: bytes, region: Region, *more: Any) -> Any:
        seen.append(region)
        return part_of(data, region, *more)

    monkeypatch.setattr(source, "part_of", noting)
    return seen


@needs_crop
def test_most_of_a_picture_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, data = cuts(monkeypatch), file_of("jpeg 4:2:0", *SIZE)
    rows = round(WORTH_SHARE * SIZE[1])
    for height in (rows, rows + 1):
        one = source_of(data)
        assert one is not None
        held = one.held([("crop", 0, 0, SIZE[0], height)])
        assert (held.kept is None) == (height > rows)
    assert seen == [Region(0, 0, SIZE[0], rows)]


@needs_crop
@pytest.mark.parametrize("kind", ["jpeg progressive", "jpeg CMYK", "png RGB", "webp"])
def test_files_that_cannot_be_cut_are_not_tried(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, one = cuts(monkeypatch), source_of(file_of(kind, *SIZE))
    assert one is not None and not one.can_be_cut
    assert one.held([("crop", 10, 20, 60, 70)]).kept is None and seen == []


@needs_crop
def test_what_a_cut_refuses_is_decoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "part_of", lambda *arguments: NotCut("not today"))
    one = source_of(file_of("jpeg 4:2:0", *SIZE))
    assert one is not None and one.can_be_cut
    assert one.held([("crop", 10, 20, 60, 70)]).kept is None


def test_a_sealed_source_decodes_nothing() -> None:
    one = source_of(file_of("jpeg 4:2:0", *SIZE))
    assert one is not None
    one.sealed = True
    image = deferred(one)
    assert image.size == SIZE and image.crop((0, 0, 9, 9)).size == (9, 9)
    for look in (image.load, lambda: image.crop((0, 0, 9, 9)).tobytes()):
        with pytest.raises(PixelsWanted):
            look()
    one.sealed = False
    assert image.getpixel((0, 0)) is not None


@pytest.mark.parametrize("kind", ["png damaged", "png cut short", "jpeg cut short"])
def test_a_damaged_picture_fails_each_time(kind: str) -> None:
    """Pillow fails once, and gives what there is of some to whoever asks again."""
    damaged = source_of(file_of(kind))
    assert damaged is not None
    for _ in range(3):
        with pytest.raises(OSError, match="truncated" if "short" in kind else "broken"):
            damaged.whole()


# --- which files have programs --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["png P", "png I;16", "png RGB, transparent", "png 1", "tiff F", "gif"])
def test_pictures_that_programs_do_not_know(kind: str) -> None:
    assert source_of(file_of(kind, *SIZE)) is None


@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "jpeg L", "png RGB", "png RGBA", "webp", "tiff CMYK"])
def test_a_picture_s_shape_is_that_of_pillow_s_reader(kind: str) -> None:
    data = file_of(kind, *SIZE)
    found = source_of(data)
    with Image.open(io.BytesIO(data)) as opened:
        assert found is not None and found.shape == (*opened.size, opened.mode)


@pytest.mark.parametrize("kind", ["no picture", "empty"])
def test_what_is_no_picture_is_an_error_of_pillow_s(kind: str) -> None:
    with pytest.raises(Image.UnidentifiedImageError):
        source_of(file_of(kind))


@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "png RGB"])
def test_what_pillow_would_warn_of_is_left_to_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(kind, *SIZE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIZE[0] * SIZE[1])
    assert source_of(data) is not None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2 * SIZE[0] * SIZE[1] // 3)
    assert source_of(data) is None


# --- info -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jpeg turned", "jpeg optimized", "png with texts", "webp", "tiff"])
def test_info_is_the_whole_file_s_though_a_part_is_decoded(kind: str) -> None:
    data = file_of(kind, *SIZE)
    one = source_of(data)
    assert one is not None
    image: Any = deferred(one).crop((10, 20, 60, 70))
    with Image.open(io.BytesIO(data)) as opened:
        wanted = opened.crop((10, 20, 60, 70))
    assert isinstance(image, Deferred) and image.tobytes() == wanted.tobytes()
    assert image.info == wanted.info and type(image) is Image.Image


def test_info_is_an_image_s_own() -> None:
    one = source_of(file_of("jpeg optimized", *SIZE))
    assert one is not None
    image = deferred(one)
    before, image.info["seen"] = image.crop((0, 0, 9, 9)), True
    behind = image.crop((0, 0, 9, 9))
    assert "seen" in behind.info and "seen" not in before.info
