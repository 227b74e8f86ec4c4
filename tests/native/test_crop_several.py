"""Files with several pictures: the first is cropped, as Pillow loads it, unless their index is unusual."""

from __future__ import annotations

import io
import random
import struct
import warnings

import pytest
from PIL import Image

from sophon_loader import native
from tests.native.make_jpeg import LAYOUTS, Spec, index_of_pictures, make_jpeg, with_segment
from tests.native.pixels import assert_same_pixels, border_boxes, decode, random_box
from tests.native.test_crop_pictures import picture, saved

pytestmark = pytest.mark.usefixtures("extension")

FIRST = saved(picture(90, 70), quality=90)
SECOND = saved(picture(45, 35, 1, "L"))
PRIMARY, DISPARITY, UNDEFINED, THUMBNAIL = 0x030000, 0x020002, 0, 0x010001


def several(*pictures: tuple[int, int, int], order: str = "<") -> bytes:
    return with_segment(FIRST, 0xE2, index_of_pictures(pictures, order)) + SECOND


def mpo(**options: object) -> bytes:
    out = io.BytesIO()
    picture(90, 70).save(out, "MPO", save_all=True, append_images=[picture(40, 30, 1)], **options)
    return out.getvalue()


TWO = ((PRIMARY, 5000, 0), (UNDEFINED, 700, 5000))
HDR = b'http://ns.adobe.com/xap/1.0/\0<rdf:Description hdrgm:Version="1.0"/>'
FILES = {
    "mpo": mpo(),
    # Not by Pillow, which writes a wrong index of more than two before 11.1.
    "mpo of five": several((DISPARITY, 5000, 0), *[(DISPARITY, 700, 5000)] * 4),
    "mpo with exif": mpo(exif=b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"),
    "ultra hdr": with_segment(several(*TWO), 0xE1, HDR),
    "ultra hdr, big endian": with_segment(several(*TWO, order=">"), 0xE1, HDR),
    "stereo": several((DISPARITY, 5000, 0), (DISPARITY, 700, 5000), order=">"),
    "flags": several((PRIMARY | 1 << 29 | 1 << 31, 5000, 0), (1 << 30, 700, 5000)),
    "a lone one": several((PRIMARY, 5000, 0)),
}


@pytest.mark.parametrize("name", FILES)
def test_the_first_picture_is_cropped(name: str) -> None:
    data, rng = FILES[name], random.Random(name)
    assert native.read_header(data) == (90, 70, True, 3)
    image = decode(data)
    assert image.size == (90, 70)
    for box in border_boxes(90, 70) + [random_box(rng, 90, 70) for _ in range(10)]:
        assert b"MPF" not in assert_same_pixels(data, box, image).data


def test_the_files_are_what_they_are_called() -> None:
    formats = {}
    for name, data in FILES.items():
        with Image.open(io.BytesIO(data)) as image:
            formats[name] = (image.format, getattr(image, "n_frames", 1))
    assert formats["mpo"] == formats["stereo"] == ("MPO", 2) and formats["mpo of five"] == ("MPO", 5)
    assert formats["ultra hdr"] == formats["a lone one"] == ("JPEG", 1)


@pytest.mark.parametrize("nbytes", [0, 10, 1000])
def test_the_pictures_behind_the_first_do_not_matter(nbytes: int) -> None:
    data = several(*TWO)
    cut = data[: -len(SECOND)] + random.Random(nbytes).randbytes(nbytes)
    assert native.crop(cut, 10, 10, 40, 40) == native.crop(data, 10, 10, 40, 40)
    assert_same_pixels(cut, (10, 10, 40, 40))


def index_with(**changes: tuple[int, int, int]) -> bytes:
    """An index of two, with type, count and value of some entries changed, by tag in hexadecimal."""
    body = bytearray(index_of_pictures(TWO))
    for tag, entry in changes.items():
        at = body.index(struct.pack("<H", int(tag, 16)))
        body[at + 2 : at + 12] = struct.pack("<HII", *entry)
    return bytes(body)


UNUSUAL = {
    "not at the start": index_of_pictures(((PRIMARY, 5000, 8), (UNDEFINED, 700, 5000))),
    "twice at the start": index_of_pictures(((PRIMARY, 5000, 0), (PRIMARY, 5000, 0))),
    "first a thumbnail": index_of_pictures(((THUMBNAIL, 5000, 0), (PRIMARY, 700, 5000))),
    "first undefined": index_of_pictures(((UNDEFINED, 5000, 0), (PRIMARY, 700, 5000))),
    "not a jpeg": index_of_pictures(((PRIMARY, 5000, 0), (1 << 24, 700, 5000))),
    "no pictures": index_of_pictures(()),
    "over 256 pictures": index_of_pictures([TWO[0], *[TWO[1]] * 256]),
    "fewer than it says": index_with(B001=(4, 1, 3)),
    "two numbers": index_with(B001=(4, 2, 50)),
    "number of another type": index_with(B001=(3, 1, 2)),
    "pictures of another type": index_with(B002=(4, 8, 50)),
    "pictures outside": index_with(B002=(7, 32, 51)),
    "pictures far outside": index_with(B002=(7, 32, 0xFFFFFFF0)),
    "more than there is": index_with(B002=(7, 0xFFFFFFF0, 50)),
    "an entry without values": index_with(B000=(7, 0, 0)),
    "no number": index_with(B001=(4, 1, 2)).replace(b"\x01\xb0\x04", b"\x05\xb0\x04"),
    "another magic": b"MPF\0JJ" + index_of_pictures(TWO)[6:],
    "cut short": index_of_pictures(TWO)[:-1],
    "cut in the directory": index_of_pictures(TWO)[:40],
    "nothing": b"MPF\0",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_index_is_refused(name: str) -> None:
    data = with_segment(FIRST, 0xE2, UNUSUAL[name]) + SECOND
    result = native.crop(data, 10, 10, 40, 40)
    assert isinstance(result, native.NotCropped)
    assert result.kind == "unsupported" and "MPF" in result.detail
    assert native.read_header(data) == (90, 70, False, 3)


def test_two_indices_are_refused() -> None:
    data = with_segment(several(*TWO), 0xE2, index_of_pictures(TWO))
    assert isinstance(native.crop(data, 10, 10, 40, 40), native.NotCropped)


def test_of_damaged_indices_only_sound_ones_are_cropped() -> None:
    """Pillow warns of what it cannot read: that must not be lost."""
    rng = random.Random(3)
    small = make_jpeg(Spec(20, 9, LAYOUTS["grey"], optimise=True))
    cropped = 0
    for _ in range(3000):
        body = bytearray(index_of_pictures(TWO[: rng.choice((1, 2, 2))], rng.choice("<>")))
        for _ in range(rng.choice((1, 1, 3))):
            body[rng.randrange(4, len(body))] = rng.choice((0, 1, 2, 7, 0xFF, rng.randrange(256)))
        data = with_segment(small, 0xE2, bytes(body))
        if isinstance(native.crop(data, 3, 2, 9, 5), native.NotCropped):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_same_pixels(data, (3, 2, 9, 5))
        cropped += 1
    assert 300 < cropped < 2700


def test_an_index_is_not_kept() -> None:
    result = native.crop(FILES["mpo"], 10, 10, 40, 40, keep_metadata=True)
    assert result == native.NotCropped("unsupported", "an index of pictures (MPF) cannot be kept")
