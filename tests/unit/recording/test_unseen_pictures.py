"""Pictures that are loaded while a sample is made, without a look at their pixels: Pillow's errors, and still deferred.

The samples open, load and turn a picture as Hugging Face's `datasets` does.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image, ImageOps
from torch.utils.data import Dataset

from sophon_loader.kinds.image.deferred import Deferred
from sophon_loader.recording.opener import can_defer
from sophon_loader.recording.picture_counts import DAMAGED, PILLOW, PictureCounts
from sophon_loader.recording.recorded_dataset import RecordedDataset
from tests.support.picture_files import file_of

pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
CUT_SHORT = {kind: file_of(kind, 120, 90)[:-300] for kind in ("jpeg 4:2:0", "jpeg progressive", "png RGB")}


def decoded(data: bytes) -> Image.Image:
    image: Image.Image = Image.open(io.BytesIO(data))
    image.load()
    if image.getexif().get(0x0112) is not None:
        image = ImageOps.exif_transpose(image)
    return image


class Table(Dataset[Any]):
    """Rows of a table, whose pictures are decoded before the user's transform has them, a batch at a time."""

    def __init__(self, files: list[bytes], transform: Callable[[Any], Any]) -> None:
        self.files, self.transform = files, transform

    def __getitems__(self, indices: list[int]) -> list[Any]:
        images = [decoded(self.files[index]) for index in indices]
        return [self.transform(image) for image in images]


class SkipsDamaged(Table):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        try:
            return super().__getitems__(indices)
        except OSError as error:
            return [f"skipped: {error}"]


def refused(image: Any) -> Any:
    raise ValueError(f"pictures must be 2,000 px wide, got {image.width}")


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "the size": lambda image: image.size,
    "a crop that is dropped": lambda image: image.crop((0, 0, 9, 9)) and None,
    "a refusal": refused,
}


def batch_of(dataset: Any) -> Any:
    return dataset.__getitems__([0, 1])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("kind", CUT_SHORT)
def test_a_damaged_picture_is_pillows_error_also_without_a_look(kind: str, transform: str) -> None:
    counts = PictureCounts(workers=1)
    dataset = SkipsDamaged([file_of("jpeg 4:2:0", 120, 90), CUT_SHORT[kind]], TRANSFORMS[transform])
    found = batch_of(RecordedDataset(dataset, counts))
    assert found == batch_of(dataset) and "truncated" in found[0]
    assert counts.found()[PILLOW, DAMAGED] == 1


@pytest.mark.parametrize("kind", ["jpeg 4:2:0", "jpeg progressive"])
def test_a_sound_picture_that_a_sample_gives_away_is_still_deferred(kind: str) -> None:
    counts = PictureCounts(workers=1)
    file = file_of(kind, 120, 90)
    [image] = RecordedDataset(Table([file], lambda image: image), counts).__getitems__([0])
    assert isinstance(image, Deferred) and not counts.found()
    assert image.resize((8, 8)) == decoded(file).resize((8, 8))


@pytest.mark.parametrize("loads", [lambda image: image.load(), lambda image: image.convert("L")], ids=["load", "op"])
def test_a_damaged_picture_that_is_loaded_behind_its_sample_raises_there(loads: Callable[[Any], Any]) -> None:
    class Unloaded(Dataset[Any]):
        def __getitem__(self, index: int) -> Image.Image:
            return Image.open(io.BytesIO(CUT_SHORT["jpeg 4:2:0"]))

    image = RecordedDataset(Unloaded(), PictureCounts(workers=1))[0]
    assert isinstance(image, Deferred)
    with pytest.raises(OSError, match="truncated"):
        loads(image)
