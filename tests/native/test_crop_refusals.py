"""What is not cropped, and that damage is never mended by cropping."""

from __future__ import annotations

import io
import random
import struct
import warnings
from dataclasses import replace

import pytest
from PIL import Image

from sophon_loader import native
from tests.native.fuzz.against_pillow import changed, is_cropped_alike, seeds
from tests.native.make_jpeg import LAYOUTS, Spec, make_jpeg
from tests.native.pixels import Box, assert_same_pixels, decode
from tests.native.test_crop_pictures import picture, saved
from tests.support.drawn import FULL

pytestmark = pytest.mark.usefixtures("extension")

SPEC = Spec(70, 50, LAYOUTS["4:2:0"])
BOX = (10, 10, 20, 20)


def refusal(data: bytes, box: Box = BOX) -> native.NotCropped:
    result = native.crop(data, *box)
    assert isinstance(result, native.NotCropped), result
    assert result.detail
    return result


def segment_at(data: bytes, marker: int) -> int:
    """Where the body of a segment begins."""
    at = 2
    while data[at + 1] != marker:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at + 4


def patched(data: bytes, marker: int, offset: int, value: int) -> bytes:
    at = segment_at(data, marker) + offset
    return data[:at] + bytes([value]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (lambda: saved(picture(64, 64), progressive=True), "progressive"),
        (lambda: saved(picture(64, 64).convert("CMYK")), "components"),
        (lambda: make_jpeg(replace(SPEC, sof=0xC9)), "arithmetic"),
        (lambda: make_jpeg(replace(SPEC, sof=0xC3)), "lossless"),
        (lambda: patched(make_jpeg(SPEC), 0xC0, 0, 12), "8 bits"),
        (lambda: patched(patched(make_jpeg(SPEC), 0xC0, 1, 0), 0xC0, 2, 0), "DNL"),
        (lambda: make_jpeg(replace(SPEC, sampling=((3, 1), (2, 1), (1, 1)))), "fractional"),
        (lambda: make_jpeg(replace(SPEC, ids=(1, 1, 2))), "component id"),
        (lambda: patched(make_jpeg(SPEC), 0xDA, 0 + 7, 1), "sequential"),
        (lambda: patched(make_jpeg(SPEC), 0xDA, 2, 0x22), "Huffman table"),
        (lambda: b"\xff\xd8\xff\xe2\0\x08MPF\0\0\0" + make_jpeg(SPEC)[2:], "MPF"),
    ],
)
def test_unsupported(data: object, detail: str) -> None:
    assert callable(data)
    result = refusal(data())
    assert result.kind == "unsupported"
    assert detail in result.detail


def test_several_scans_are_unsupported() -> None:
    """One scan per component, as mozjpeg and old cameras write them."""
    data = make_jpeg(SPEC)
    at = segment_at(data, 0xDA) - 4
    lone = data[:at] + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" + data[at + 14 :]
    assert refusal(lone).detail == "several scans"


@pytest.mark.parametrize(
    ("width", "height", "sampling"),
    [(65501, 8, LAYOUTS["grey"]), (9600, 9600, LAYOUTS["grey"])],
)
def test_too_large(width: int, height: int, sampling: tuple[tuple[int, int], ...]) -> None:
    data = make_jpeg(replace(SPEC, sampling=sampling))
    for offset, value in enumerate(height.to_bytes(2, "big") + width.to_bytes(2, "big"), 1):
        data = patched(data, 0xC0, offset, value)
    assert refusal(data).kind == "too_large"


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8", b"\xff\xd8\xff", b"GIF89a" * 9, b"\xff" * 99])
def test_not_a_jpeg(data: bytes) -> None:
    assert refusal(data).kind == "corrupt"
    assert native.image_size(data) is None


@pytest.mark.parametrize("restart_interval", [0, 3])
def test_every_truncation_is_refused(restart_interval: int) -> None:
    """Also one behind the rectangle: without cropping, the decoder would fail on it."""
    data = make_jpeg(replace(SPEC, restart_interval=restart_interval))
    box = (0, 0, 8, 8)
    for nbytes in range(len(data)):
        assert refusal(data[:nbytes], box).kind in {"corrupt", "unsupported"}, nbytes
    assert_same_pixels(data, box)


def test_bytes_behind_the_end_do_not_matter() -> None:
    data = make_jpeg(SPEC)
    result = assert_same_pixels(data + b"trailing bytes", BOX)
    assert result == native.crop(data, *BOX)


def test_a_second_scan_behind_the_rectangle_is_refused() -> None:
    """Pillow fails on it: cropping must not hide it."""
    data = make_jpeg(SPEC)
    scan = data[segment_at(data, 0xDA) - 4 :]
    assert refusal(data[:-2] + scan, (0, 0, 8, 8)).kind == "corrupt"


@pytest.mark.parametrize(
    "change",
    [b"", b"\xff\xd0", b"\xff\xd5", b"\xff\xd1\xff\xd1"],
    ids=["missing", "early", "late", "doubled"],
)
def test_restarts_out_of_order_are_refused(change: bytes) -> None:
    data = make_jpeg(replace(SPEC, restart_interval=2))
    damaged = data.replace(b"\xff\xd1", change, 1)
    assert damaged != data
    assert refusal(damaged, (0, 0, 70, 50)).kind == "corrupt"


def test_bytes_left_over_before_a_restart_are_refused() -> None:
    data = make_jpeg(replace(SPEC, restart_interval=2))
    assert refusal(data.replace(b"\xff\xd1", b"\x2a\xff\xd1", 1), (0, 0, 70, 50)).kind == "corrupt"


@pytest.mark.parametrize("restart_interval", [0, 1, 3, 1000])
def test_a_scan_that_ends_early_is_refused(restart_interval: int) -> None:
    """An end-of-image marker does not make it whole."""
    data = make_jpeg(replace(SPEC, restart_interval=restart_interval, density=0.3))
    for missing in (3, 10, 50):
        damaged = data[: -2 - missing] + data[-2:]
        assert refusal(damaged, (69, 49, 1, 1)).detail == "damaged scan"
        assert_same_pixels(damaged, (0, 0, 20, 14))


def test_dc_values_out_of_range_are_refused() -> None:
    data = make_jpeg(replace(SPEC, optimise=True, dc_step=32000, dc_limit=32767))
    assert refusal(data, (0, 0, 70, 50)).detail == "damaged scan"


def test_a_restart_without_an_interval_is_refused() -> None:
    data = make_jpeg(SPEC)
    for at in (len(data) - 2, segment_at(data, 0xDA) + 60):
        assert refusal(data[:at] + b"\xff\xd0" + data[at:], (0, 0, 70, 50)).kind == "corrupt"


def test_an_impossible_huffman_table_is_refused() -> None:
    data = patched(make_jpeg(SPEC), 0xC4, 1, 3)  # three codes of one bit
    assert refusal(data).kind == "corrupt"


@pytest.mark.parametrize(
    "segment",
    [
        b"\xff\xe0\0\x08JFIF\0\1",
        b"\xff\xee\0\x0aAdobe\0\x64\0",
        b"\xff\xe2\0\x0eICC_PROFILE\0",
        b"\xff\xed\0\x16Photoshop 3.0\x008BIM\x03\xed",
    ],
)
def test_segments_that_pillow_fails_on_are_refused(segment: bytes) -> None:
    """They would be dropped, and with them the damage."""
    data = make_jpeg(replace(SPEC, jfif=False))
    assert refusal(data[:2] + segment + data[2:]).kind == "corrupt"
    if segment[3] != 0x0A:  # Pillow reads a short Adobe segment, libjpeg skips it
        with pytest.raises(OSError):
            decode(data[:2] + segment + data[2:])


def exif(x_resolution: tuple[int, int, int], order: str = "<") -> bytes:
    """An EXIF segment of two entries: the horizontal resolution (type, count, value) and its unit."""
    tiff = (b"II" if order == "<" else b"MM") + struct.pack(order + "HIH", 42, 8, 2)
    tiff += struct.pack(order + "HHII", 0x011A, *x_resolution)
    tiff += struct.pack(order + "HHIHH", 0x0128, 3, 1, 2, 0)
    body = b"Exif\0\0" + tiff + struct.pack(order + "III", 0, 72, 1)
    return b"\xff\xe1" + (len(body) + 2).to_bytes(2, "big") + body


RATIONAL = (5, 1, 38)
ONE_CHARACTER = (2, 1, 0)


@pytest.mark.parametrize("segment", [exif(RATIONAL), exif(RATIONAL, ">")], ids=["little", "big"])
def test_sound_exif_is_dropped(segment: bytes) -> None:
    """As cameras write it, without JFIF: Pillow takes the density from it."""
    data = make_jpeg(replace(SPEC, jfif=False))
    data = data[:2] + segment + data[2:]
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["dpi"] == (72, 72)
    assert b"Exif" not in assert_same_pixels(data, BOX).data


def test_exif_that_pillow_fails_on_is_refused() -> None:
    data = make_jpeg(replace(SPEC, jfif=False))
    data = data[:2] + exif(ONE_CHARACTER) + data[2:]
    with pytest.raises(OSError):
        decode(data)
    assert refusal(data).detail == "damaged EXIF segment"


def test_exif_does_not_matter_beside_a_density_in_jfif() -> None:
    data = make_jpeg(SPEC)
    jfif = segment_at(data, 0xE0)
    with_density = data[: jfif + 7] + b"\x01" + data[jfif + 8 :]
    assert_same_pixels(with_density[:2] + exif(ONE_CHARACTER) + with_density[2:], BOX)


def test_a_sound_photoshop_segment_is_skipped() -> None:
    body = b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0\0\0\0\x03abc\0" + b"8BIM\x03\xed\x01x\0\0\0\0"
    segment = b"\xff\xed" + (len(body) + 2).to_bytes(2, "big") + body
    data = make_jpeg(replace(SPEC, jfif=False))
    assert_same_pixels(data[:2] + segment + data[2:], BOX)


@pytest.mark.parametrize("restart_interval", [0, 3])
def test_fill_bytes_before_a_stuffed_zero_are_refused_wherever_they_are(restart_interval: int) -> None:
    """libjpeg-turbo's fast loop and its slow one read them in two ways. Before markers they are legal."""
    data = make_jpeg(Spec(150, 120, LAYOUTS["4:2:0"], density=0.4, restart_interval=restart_interval, fill_bytes=3))
    assert_same_pixels(data, (30, 10, 60, 50))
    scan = data.index(b"\xff\xda")
    places = [at for at in range(scan, len(data)) if data[at : at + 2] == b"\xff\0"]
    assert len(places) > 20
    for at in places[:: len(places) // 10]:
        damaged = data[:at] + b"\xff" + data[at:]
        for box in ((0, 0, 8, 8), (30, 10, 60, 50), (149, 119, 1, 1)):
            assert refusal(damaged, box).detail == "damaged scan"


def test_what_is_cropped_of_damaged_files_is_what_pillow_sees() -> None:
    rng, inputs = random.Random(20), seeds()
    plain = make_jpeg(replace(SPEC, jfif=False))
    inputs += [plain[:2] + exif(RATIONAL) + plain[2:]] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about damaged metadata
        cropped = sum(is_cropped_alike(changed(rng, rng.choice(inputs)), rng) for _ in range(8000 if FULL else 1600))
    assert cropped > 200  # the check is not an empty one


def test_a_picture_that_pillow_cannot_read_is_not_cropped() -> None:
    """Pillow's own limit against decompression bombs has the last word."""
    assert Image.MAX_IMAGE_PIXELS == 89478485
    with pytest.raises(OSError):
        Image.open(io.BytesIO(make_jpeg(SPEC)[:-200])).load()
    assert refusal(make_jpeg(SPEC)[:-200], (0, 0, 70, 50)).kind == "corrupt"
