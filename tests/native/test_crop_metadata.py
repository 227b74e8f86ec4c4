"""Crops that keep the metadata: Pillow tells the same `info` of the part as of the whole."""

from __future__ import annotations

import io
import random
from dataclasses import replace

import pytest
from PIL import Image

from sophon_loader import native
from tests.native.fuzz.against_pillow import changed
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg, with_segment
from tests.native.pixels import Box, assert_same_pixels, cut, decode, random_box
from tests.native.test_crop_pictures import SAMPLES, picture, saved
from tests.native.test_crop_refusals import RATIONAL, exif, segment_at

pytestmark = pytest.mark.usefixtures("extension")

BOX = (20, 10, 30, 20)
PLAIN = saved(picture(90, 70), quality=90)
DENSITY = saved(picture(90, 70), dpi=(300, 200))
BARE = make_jpeg(Spec(90, 70, LAYOUTS["4:2:0"], jfif=False))
PHOTOSHOP = (
    b"Photoshop 3.0\x008BIM\x03\xed\0\0\0\0\0\x10\0\x48\0\0\0\1\0\1\0\x48\0\0\0\1\0\1" + b"8BIM\4\4\0\0\0\0\0\2ab"
)

FILES = {
    "nothing": BARE,
    "jfif": PLAIN,
    "jfif with a thumbnail": with_segment(BARE, 0xE0, b"JFIF\0\1\2\1\0\x48\0\x60\2\1" + bytes(6)),
    "jfif twice": with_segment(PLAIN, 0xE0, b"JFIF\0\1\2\2\0\x48\0\x60\0\0"),
    "adobe": make_jpeg(Spec(90, 70, LAYOUTS["4:4:4"], jfif=False, adobe_transform=0)),
    "longer adobe": with_segment(BARE, 0xEE, b"Adobe\0\x64\0\0\0\0\1and more"),
    "exif": saved(picture(90, 70), exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"),
    "exif without jfif": BARE[:2] + exif(RATIONAL) + BARE[2:],
    "exif twice": DENSITY[:2] + exif(RATIONAL) + exif(RATIONAL, ">") + DENSITY[2:],
    "dpi": DENSITY,
    "profile": saved(picture(90, 70), icc_profile=random.Random(0).randbytes(60_000)),
    "comments": with_segment(saved(picture(90, 70), comment=b"last"), 0xFE, b"first"),
    "photoshop": with_segment(PLAIN, 0xED, PHOTOSHOP),
    "xmp": with_segment(PLAIN, 0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"),
    "flashpix": with_segment(PLAIN, 0xE2, b"FPXR\0and so on"),
    "unknown": with_segment(with_segment(PLAIN, 0xEF, b""), 0xE7, b"anything"),
    "fill bytes": make_jpeg(Spec(90, 70, LAYOUTS["4:2:0"], fill_bytes=3, adobe_transform=1)),
}


def info(data: bytes) -> dict[str | tuple[int, int], object]:
    with Image.open(io.BytesIO(data)) as image:
        return image.info


def assert_same_info(data: bytes, box: Box) -> bytes:
    """Crop with metadata: `info` is that of the file, and all but the metadata that of a crop without."""
    kept = native.crop(data, *box, keep_metadata=True)
    bare = assert_same_pixels(data, box)
    assert isinstance(kept, native.Cropped), kept
    assert info(kept.data) == info(data) and kept[1:] == bare[1:]
    assert native.crop(kept.data, kept.dx, kept.dy, *box[2:]) == bare
    size = (kept.dx, kept.dy, *box[2:])
    assert cut(decode(kept.data), size).tobytes() == cut(decode(data), box).tobytes()
    return kept.data


def segments(data: bytes) -> list[bytes]:
    """Those of metadata, without fill bytes."""
    found, at = [], 2
    while data[at + 1] != 0xDA:
        if data[at + 1] == 0xFF:
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] in {0xFE, *range(0xE0, 0xF0)}:
            found.append(data[at:end])
        at = end
    return found


@pytest.mark.parametrize("name", FILES)
def test_the_info_is_the_same(name: str) -> None:
    rng = random.Random(name)
    for _ in range(5):
        kept = assert_same_info(FILES[name], random_box(rng, 90, 70))
        assert segments(kept) == segments(FILES[name])


def test_the_files_have_what_they_are_called() -> None:
    keys = {name: set(info(data)) for name, data in FILES.items()}
    assert not keys["nothing"] and keys["jfif"] == {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    assert {"adobe", "adobe_transform"} == keys["adobe"] and {"exif", "dpi"} == keys["exif without jfif"]
    assert all(
        {"profile": "icc_profile", "comments": "comment", **{n: n for n in ("photoshop", "xmp", "flashpix")}}[name]
        in keys[name]
        for name in ("profile", "comments", "photoshop", "xmp", "flashpix")
    )


def test_a_profile_in_several_segments_is_kept() -> None:
    body = random.Random(1).randbytes(40_000)
    data = PLAIN
    for number, part in ((2, body[20_000:]), (1, body[:20_000])):  # as if in the wrong order
        data = with_segment(data, 0xE2, b"ICC_PROFILE\0" + bytes([number, 2]) + part)
    assert info(assert_same_info(data, BOX))["icc_profile"] == body


def test_metadata_behind_the_frame_header_is_kept() -> None:
    at = segment_at(PLAIN, 0xC4) - 4
    assert_same_info(PLAIN[:at] + exif(RATIONAL) + b"\xff\xfe\0\4ab" + PLAIN[at:], BOX)


def test_a_profile_behind_the_frame_header_is_refused() -> None:
    """Pillow overlooks it there, and would not where it were put."""
    at = segment_at(PLAIN, 0xC4) - 4
    data = PLAIN[:at] + b"\xff\xe2\0\x12ICC_PROFILE\0\1\1ab" + PLAIN[at:]
    assert "icc_profile" not in info(data)
    result = native.crop(data, *BOX, keep_metadata=True)
    assert isinstance(result, native.NotCropped) and result.kind == "unsupported"
    assert_same_pixels(data, BOX)


def test_there_is_a_limit() -> None:
    """64 KiB, markers and lengths included."""
    rest = (1 << 16) - 4 - sum(map(len, segments(PLAIN)))
    assert_same_info(with_segment(PLAIN, 0xEF, bytes(rest)), BOX)
    too_large = with_segment(PLAIN, 0xEF, bytes(rest + 1))
    result = native.crop(too_large, *BOX, keep_metadata=True)
    assert isinstance(result, native.NotCropped) and result.kind == "too_large"
    assert_same_pixels(too_large, BOX)


def test_it_is_asked_for() -> None:
    kept = native.crop(FILES["comments"], *BOX, keep_metadata=True)
    assert isinstance(kept, native.Cropped) and b"first" in kept.data
    assert b"first" not in assert_same_pixels(FILES["comments"], BOX).data


@pytest.mark.filterwarnings("ignore")  # Pillow's, about damaged metadata
def test_of_damaged_files_the_info_is_that_of_the_whole() -> None:
    rng, kept = random.Random(8), 0
    small = make_jpeg(replace(Spec(20, 9, LAYOUTS["grey"], optimise=True), jfif=False))
    metadata = b"".join(one for data in FILES.values() for one in segments(data) if len(one) < 200)
    for _ in range(4000):
        data = changed(rng, small[:2] + rng.choice(segments(small[:2] + metadata + small[2:])) + small[2:])
        if native.image_size(data) != (20, 9):
            continue
        part = native.crop(data, 3, 2, 9, 5, keep_metadata=True)
        if isinstance(part, native.Cropped):
            assert info(part.data) == info(data)
            kept += 1
    assert kept > 500


@pytest.mark.parametrize("name", ["imagenet", "photos"])
def test_sample_sets(name: str) -> None:
    root = SAMPLES / name
    if not root.is_dir():
        pytest.skip(f"the sample set is not at hand ({root})")
    rng, refused = random.Random(name), 0
    paths = sorted(path for path in root.glob("*/*") if path.suffix.lower() in {".jpg", ".jpeg"})
    for path in paths:
        data = path.read_bytes()
        size = native.image_size(data)
        assert size is not None
        box = random_box(rng, *size)
        if native.crop(data, *box, keep_metadata=True)[0] == "too_large":
            refused += 1
        else:
            assert_same_info(data, box)
    assert paths and refused <= len(paths) // 20
