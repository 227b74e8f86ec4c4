"""Zero pixel differences for pictures: those Pillow writes, and the sample sets where they are at hand."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sophon_loader import native
from tests.native.pixels import assert_same_pixels, border_boxes, decode, random_box

pytestmark = pytest.mark.usefixtures("extension")

SAMPLES = Path(__file__).parents[3] / "shared" / "data"


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Noise over large shapes, so that both coarse and fine coefficients matter."""
    rng = random.Random(seed)
    coarse = Image.frombytes("RGB", (5, 4), rng.randbytes(60)).resize((width, height), Image.Resampling.BICUBIC)
    noise = Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3))
    return Image.blend(coarse, noise, 0.15).convert(mode)


def saved(image: Image.Image, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


@pytest.mark.parametrize("quality", [5, 75, 95, 100])
@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", "grey"])
def test_written_by_pillow(subsampling: str, optimize: bool, quality: int) -> None:
    rng = random.Random(quality)
    for width, height in [(97, 130), (64, 48), (21, 19)]:
        if subsampling == "grey":
            data = saved(picture(width, height, mode="L"), quality=quality, optimize=optimize)
        else:
            data = saved(picture(width, height), quality=quality, optimize=optimize, subsampling=subsampling)
        image = decode(data)
        for box in border_boxes(width, height) + [random_box(rng, width, height) for _ in range(5)]:
            assert_same_pixels(data, box, image)


@pytest.mark.parametrize("restart", [{"restart_marker_rows": 1}, {"restart_marker_blocks": 5}])
def test_restarts_written_by_pillow(restart: dict[str, int]) -> None:
    rng = random.Random(0)
    data = saved(picture(150, 110), quality=90, **restart)
    assert b"\xff\xdd" in data
    for _ in range(30):
        assert_same_pixels(data, random_box(rng, 150, 110))


def test_metadata_is_dropped_and_density_kept() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    data = saved(picture(64, 64), exif=exif, comment=b"comment", icc_profile=b"profile" * 100, dpi=(300, 300))
    result = assert_same_pixels(data, (8, 8, 20, 20))
    with Image.open(io.BytesIO(result.data)) as cropped:
        assert cropped.info["dpi"] == (300, 300)
        assert not {"exif", "icc_profile", "comment"} & cropped.info.keys()


def test_a_small_crop_is_a_small_file() -> None:
    data = saved(picture(400, 300), quality=90)
    result = native.crop(data, 150, 100, 50, 50)
    assert isinstance(result, native.Cropped)
    assert len(result.data) < len(data) / 10


@pytest.mark.parametrize("name", ["imagenet", "photos"])
def test_sample_sets(name: str) -> None:
    root = SAMPLES / name
    if not root.is_dir():
        pytest.skip(f"the sample set is not at hand ({root})")
    rng = random.Random(name)
    paths = sorted(path for path in root.glob("*/*") if path.suffix.lower() in {".jpg", ".jpeg"})
    assert paths
    for path in paths:
        data = path.read_bytes()
        image = decode(data)
        for _ in range(3):
            assert_same_pixels(data, random_box(rng, *image.size), image)
