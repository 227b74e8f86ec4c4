"""A part of a file: what it holds of the picture, and which files have none."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from sophon_loader import native
from sophon_loader.kinds.image.part import NotCut, PartOfFile, Region, part_of
from tests.support.picture_files import file_of

needs_crop = pytest.mark.skipif(not native.available, reason="the C extension is not built")
SIZE = 301, 203
MIDDLE = Region(90, 50, 80, 60)
REGIONS = [MIDDLE, *(Region(x, y, 40, 30) for x in (0, 130, 261) for y in (0, 90, 173)), Region(7, 3, 1, 1)]


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


def test_the_share_of_a_picture() -> None:
    assert Region(3, 3, 20, 15).share_of(40, 30) == 0.25


@needs_crop
@pytest.mark.parametrize("region", REGIONS, ids=str)
@pytest.mark.parametrize("kind", ["jpeg 4:4:4", "jpeg 4:2:2", "jpeg 4:2:0", "jpeg L", "jpeg restarts", "jpeg turned"])
def test_the_part_holds_the_region(kind: str, region: Region) -> None:
    data = file_of(kind, *SIZE)
    part = part_of(data, region, *SIZE)
    assert isinstance(part, PartOfFile) and len(part.data) < len(data)
    kept = part.window.kept
    assert (part.window.full_width, part.window.full_height) == SIZE
    assert kept.contains(region) and Region(0, 0, *SIZE).contains(kept)
    with Image.open(io.BytesIO(data)) as whole, Image.open(io.BytesIO(part.data)) as got:
        assert got.size == (kept.width, kept.height)
        inner = region.shifted(kept.left, kept.top)
        assert got.crop(_box(inner)).tobytes() == whole.crop(_box(region)).tobytes()


def _box(region: Region) -> tuple[int, int, int, int]:
    return region.left, region.top, region.left + region.width, region.top + region.height


@needs_crop
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (file_of("jpeg progressive", *SIZE), "unsupported"),
        (file_of("jpeg CMYK", *SIZE), "unsupported"),
        (file_of("jpeg of 12 bits", *SIZE), "unsupported"),
        (file_of("png RGB", *SIZE), "not a JPEG"),
        (b"", "not a JPEG"),
        (b"\xff\xd8", "corrupt"),
        (b"no picture at all", "not a JPEG"),
    ],
    ids=["progressive", "CMYK", "12 bits", "PNG", "empty", "two bytes", "text"],
)
def test_files_that_are_used_as_they_are(data: bytes, why: str) -> None:
    found = part_of(data, MIDDLE, *SIZE)
    assert isinstance(found, NotCut), found
    assert why.replace(" ", "-") in found.reason.replace(" ", "-").replace("_", "-"), found.reason


@needs_crop
def test_a_file_without_its_end_is_not_cut() -> None:
    data = file_of("jpeg 4:2:0", *SIZE)
    found = [part_of(data[:length], MIDDLE, *SIZE) for length in range(0, len(data), 97)]
    reasons = [one.reason.partition(":")[0] if isinstance(one, NotCut) else "cut" for one in found]
    assert set(reasons) == {"corrupt"}


@needs_crop
def test_all_of_a_picture_is_no_part() -> None:
    assert isinstance(part_of(file_of("jpeg 4:2:0", *SIZE), Region(0, 0, *SIZE), *SIZE), NotCut)


def test_without_the_extension_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "the C extension is not built")
    found = part_of(file_of("jpeg 4:2:0", *SIZE), MIDDLE, *SIZE)
    assert isinstance(found, NotCut) and "the C extension is not built" in found.reason
