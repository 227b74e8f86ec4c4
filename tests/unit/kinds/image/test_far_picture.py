"""Pictures whose files lie elsewhere: the same pixels, by whatever the supplier sends, and nothing asked for twice."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from sophon_loader.errors import ProgramRefused
from sophon_loader.kinds.image.execute import begin_program, image_at, part_of_begun
from sophon_loader.kinds.image.fused_picture import DecodeTally
from sophon_loader.kinds.image.header import header_of
from sophon_loader.kinds.image.opened import opened_far
from sophon_loader.kinds.image.part import PartOfFile
from sophon_loader.kinds.image.segments import SEGMENTS
from sophon_loader.native import fused
from sophon_loader.programs.program import Program
from tests.support.pictures import picture

pytestmark = pytest.mark.skipif(fused.FINISH not in fused.checked(), reason="our C is not here")


def saved(format_: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    picture(240, 180, 3).convert(mode).save(out, format_, **options)
    return out.getvalue()


EXIF = Image.Exif()
EXIF[0x0112] = 6
FILES = {
    "JPEG": saved("JPEG", quality=92),
    "grey JPEG": saved("JPEG", "L"),
    "progressive JPEG": saved("JPEG", progressive=True),
    "turned JPEG": saved("JPEG", exif=EXIF, quality=92),
    "PNG": saved("PNG"),
    "PNG with alpha": saved("PNG", "RGBA"),
    "mask": saved("PNG", "L"),
    "WebP": saved("WEBP"),
}


class Made:
    """A supplier that does as an agent would, up to a segment; what was asked for is noted."""

    def __init__(self, data: bytes, segment: int) -> None:
        self.data, self.segment = data, segment
        self.keeps_info = False
        self.asked: list[str] = []

    def made(self, program: Program, *, pixels: bool) -> tuple[int, Any]:
        if not program.steps:
            self.asked.append("file")
            return 0, self.data
        begun = begin_program(program, self.data)
        if not self.segment or not pixels:
            part = part_of_begun(begun, keep_metadata=self.keeps_info)
            self.asked.append("part" if isinstance(part, PartOfFile) else "file")
            return 0, part if isinstance(part, PartOfFile) else self.data
        self.asked.append(SEGMENTS[self.segment])
        image = image_at(begun, SEGMENTS[self.segment])
        if not self.keeps_info:
            image.info = {}
        return self.segment, image


def far(data: bytes, segment: int) -> tuple[Any, Made]:
    made, header = Made(data, segment), header_of(data)
    assert header is not None
    image = opened_far(header, len(data), made, "a.jpg")
    assert image is not None
    image._node.source.tally = DecodeTally()
    return image, made


def crop(image: Any) -> Any:
    return (
        image.convert("RGB")
        .crop((20, 30, 100, 90))
        .resize((48, 40), Image.Resampling.BILINEAR)
        .transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    )


def colours(image: Any) -> Any:
    return ImageEnhance.Color(crop(image)).enhance(1.4)


def views(image: Any) -> Any:
    one = image.convert("RGB")
    parts = [one.resize((32, 32), box=(0, 0, 90, 90)), one.crop((50, 50, 230, 170)).resize((20, 20))]
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


def held(image: Any) -> Any:
    part = image.crop((10, 10, 90, 90))
    return np.concatenate([np.asarray(part.resize((9, 9))).reshape(-1), np.asarray(part).reshape(-1)])


WAYS: list[Callable[[Any], Any]] = [
    crop,
    colours,
    views,
    held,
    lambda image: image,
    lambda image: ImageOps.exif_transpose(image).resize((30, 30)),
    lambda image: crop(image).info,
    lambda image: (image.info, image.format, image.size, image.mode),
    lambda image: np.asarray(image)[5:9],
    lambda image: image.resize((24, 24)).convert("L").point(lambda v: 255 - v),
]


@pytest.mark.parametrize("segment", [0, 1, 2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FILES)
def test_what_pillow_gives(name: str, way: Callable[[Any], Any], segment: int) -> None:
    image, _ = far(FILES[name], segment)
    found, expected = way(image), way(Image.open(io.BytesIO(FILES[name])))
    if isinstance(expected, Image.Image):
        assert found.tobytes() == expected.tobytes() and (found.mode, found.size) == (expected.mode, expected.size)
        assert found.info == expected.info
    elif isinstance(expected, np.ndarray):
        assert np.array_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize(("segment", "asked"), [(0, ["part"]), (2, ["shrunk"]), (3, ["8-bit"])])
def test_one_look_is_one_question(segment: int, asked: list[str]) -> None:
    image, made = far(FILES["JPEG"], segment)
    assert image.size == (240, 180) and made.asked == []
    np.asarray(crop(image))
    assert made.asked == asked


def test_a_picture_that_is_looked_at_twice_is_asked_for_as_its_file() -> None:
    image, made = far(FILES["JPEG"], 3)
    views(image)  # both wanted before the first look
    assert made.asked == ["file"]
    image, made = far(FILES["JPEG"], 3)
    np.asarray(crop(image)), np.asarray(crop(image))
    assert made.asked == ["8-bit", "file"]


def test_images_that_are_wanted_together_are_one_part_of_the_file() -> None:
    image, made = far(FILES["JPEG"], 3)
    part = image.crop((16, 16, 112, 96))
    small = part.resize((12, 10), Image.Resampling.BILINEAR)
    other = image.crop((20, 60, 130, 140)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    found = [np.asarray(one) for one in (small, part, other)]
    assert made.asked == ["part"]
    plain = Image.open(io.BytesIO(FILES["JPEG"]))
    expected = plain.crop((16, 16, 112, 96)), plain.crop((20, 60, 130, 140)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert np.array_equal(found[0], np.asarray(expected[0].resize((12, 10), Image.Resampling.BILINEAR)))
    assert np.array_equal(found[1], np.asarray(expected[0])) and np.array_equal(found[2], np.asarray(expected[1]))
    corner = np.asarray(image.crop((200, 150, 230, 170)))
    assert made.asked == ["part", "file"] and np.array_equal(corner, np.asarray(plain.crop((200, 150, 230, 170))))


def test_metadata_comes_along_once_somebody_has_asked_for_it() -> None:
    image, made = far(FILES["turned JPEG"], 0)
    assert "exif" in crop(image).info and made.asked == ["part"] and made.keeps_info
    assert "exif" in image.info and made.asked == ["part"]
    again, other = far(FILES["turned JPEG"], 0)
    other.keeps_info = True
    turned = crop(again)
    np.asarray(turned)
    assert "exif" in turned.info and other.asked == ["part"]


def test_an_orientation_is_asked_for_only_where_there_is_metadata() -> None:
    image, made = far(FILES["JPEG"], 3)
    assert ImageOps.exif_transpose(image).size == (240, 180) and made.asked == []


def test_another_file_than_the_header_was_of_is_refused() -> None:
    image, made = far(FILES["JPEG"], 0)
    made.data = FILES["grey JPEG"]
    with pytest.raises(ProgramRefused, match="must be the one whose header was read"):
        np.asarray(image)
