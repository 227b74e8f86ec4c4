"""Headers against Pillow's own answers: real files, every mode and kind, and damaged ones."""

from __future__ import annotations

import io
import random
import struct
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from sophon_loader.kinds.image.header import PACKED_NBYTES, Header, header_of, pack, unpack
from tests.support.drawn import FULL

SAMPLES = Path(__file__).parents[5] / "shared" / "data"
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16")


def opened(data: bytes) -> Header:
    """What Pillow says."""
    with Image.open(io.BytesIO(data)) as image:
        assert image.format is not None
        if "xmp" in image.info:  # which Pillow before 11.1 does not look at
            image.info.setdefault("XML:com.adobe.xmp", image.info["xmp"].decode("latin-1"))
            image._reload_exif()
        # Not the method of PNG files, which decodes them to look behind the pixels.
        orientation = Image.Image.getexif(image).get(0x0112, 1)
        return Header(
            image.format,
            image.mode,
            image.width,
            image.height,
            orientation if orientation in range(1, 9) else 1,
            bool(image.info.get("progressive")),
            getattr(image, "n_frames", 1) > 1 or (image.format == "JPEG" and "mp" in image.info),
            data[24] if image.format == "PNG" else 8,
            image.has_transparency_data,
            image.format in ("JPEG", "MPO") and bool({"exif", "xmp"} & {*image.info}),
        )


def assert_as_pillow(data: bytes) -> Header:
    header = header_of(data)
    assert header is not None and header._replace(header_nbytes=0) == opened(data)
    return header


def picture(mode: str = "RGB", size: tuple[int, int] = (37, 21)) -> Image.Image:
    noise = Image.frombytes("RGB", size, random.Random(0).randbytes(3 * size[0] * size[1]))
    if mode == "LA":
        return Image.merge("LA", noise.split()[:2])
    if mode == "RGBA":
        return Image.merge("RGBA", (*noise.split(), noise.getchannel(0)))
    if mode == "I;16":
        return Image.frombytes("I;16", size, random.Random(1).randbytes(2 * size[0] * size[1]))
    return noise.convert(mode)


def saved(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, name, **options)
    return out.getvalue()


def tiff(orientation: int, order: str = "<", kind: int = 3, more: bytes = b"") -> bytes:
    """A directory with one tag that has a value elsewhere, and the orientation behind it."""
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *((orientation, 0) if kind == 3 else (orientation,)))
    entries = [struct.pack(order + "HHII", 0x010F, 2, 6, 38), struct.pack(order + "HHI", 0x0112, kind, 1) + value]
    start = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    return start + struct.pack(order + "H", 2) + b"".join(entries) + b"\0\0\0\0" + b"maker\0" + more


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(body)) + body


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    return jpeg[:2] + b"".join(segments) + jpeg[2:]


def exif(*arguments: Any) -> bytes:
    return segment(0xE1, b"Exif\0\0" + tiff(*arguments))


def xmp(text: bytes) -> bytes:
    return segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + text)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def with_chunks(png: bytes, *chunks: bytes) -> bytes:
    """Behind IHDR and PLTE, so in front of the pixels."""
    at = png.index(b"IDAT") - 4
    return png[:at] + b"".join(chunks) + png[at:]


def png_of(bits: int, colour: int, interlace: int = 0) -> bytes:
    """5 x 4 px, all of them zeros."""
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 5, 4, bits, colour, 0, 0, interlace))
    palette = chunk(b"PLTE", bytes(range(6))) if colour == 3 else b""
    return start + palette + chunk(b"IDAT", zlib.compress(bytes(999))) + chunk(b"IEND", b"")


JPEG = saved(picture(), "JPEG")
MPO = saved(picture(), "MPO", save_all=True, append_images=[picture("L")])
PNG = saved(picture(), "PNG")
WEBP_EXIF = saved(picture(), "WEBP", exif=b"Exif\0\0" + tiff(6))
FRAMES = {"save_all": True, "append_images": [picture("L").convert("RGB")]}
MORE_FRAMES = {"save_all": True, "append_images": [picture("L").convert("P"), picture("1").convert("P")]}

FILES = {
    **{f"jpeg {mode}": saved(picture(mode), "JPEG") for mode in ("L", "RGB", "CMYK")},
    "jpeg progressive": saved(picture(), "JPEG", progressive=True),
    **{f"jpeg orientation {n}": with_segments(JPEG, exif(n, "<>"[n % 2])) for n in range(10)},
    "jpeg orientation in XMP": with_segments(JPEG, xmp(b'<a tiff:Orientation="8"/>')),
    "jpeg orientation in both": with_segments(JPEG, exif(3), xmp(b"<tiff:Orientation>8</tiff:Orientation>")),
    "jpeg orientation in two XMPs": with_segments(JPEG, xmp(b'tiff:Orientation="8"'), xmp(b"tiff:Orientation>2<")),
    "jpeg with fill bytes": JPEG[:2] + b"\xff\xff\xff" + JPEG[2:],
    "jpeg with metadata": saved(picture(), "JPEG", icc_profile=bytes(70_000), comment=b"no", dpi=(300, 300)),
    "mpo": MPO,
    "mpo with exif": saved(picture(), "MPO", exif=b"Exif\0\0" + tiff(6), save_all=True, append_images=[picture()]),
    "ultra hdr": with_segments(MPO, xmp(b'<a hdrgm:Version="1.0"/>')),
    **{f"png {mode}": saved(picture(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
    **{
        f"png {bits} {colour} {interlace}": png_of(bits, colour, interlace)
        for bits, colours in ((1, (0, 3)), (2, (0, 3)), (4, (0, 3)), (8, (0, 2, 3, 4, 6)), (16, (0, 2, 4, 6)))
        for colour in colours
        for interlace in (0, 1)
    },
    "png transparent P": with_chunks(saved(picture("P"), "PNG"), chunk(b"tRNS", b"\xff\0")),
    "png transparent L": saved(picture("L"), "PNG", transparency=3),
    "png transparent RGB": saved(picture(), "PNG", transparency=(1, 2, 3)),
    "png with exif": with_chunks(PNG, chunk(b"eXIf", tiff(7, ">"))),
    "png with texts": with_chunks(PNG, chunk(b"tEXt", b"a\0b"), chunk(b"tEXt", b"c\0d"), chunk(b"pHYs", bytes(9))),
    "png with XMP": with_chunks(PNG, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0<a/>")),
    "png animated": saved(picture(), "PNG", **FRAMES),
    "png animated, another picture": saved(picture("P"), "PNG", default_image=True, **MORE_FRAMES),
    "webp lossy": saved(picture(), "WEBP"),
    "webp lossless": saved(picture(), "WEBP", lossless=True),
    "webp lossy alpha": saved(picture("RGBA"), "WEBP"),
    "webp lossless alpha": saved(picture("RGBA"), "WEBP", lossless=True),
    "webp animated": saved(picture(), "WEBP", **FRAMES),
    "webp animated alpha": saved(picture("RGBA"), "WEBP", **FRAMES),
    "webp with exif": WEBP_EXIF,
    "webp with bare exif": saved(picture("RGBA"), "WEBP", exif=tiff(4, ">"), icc_profile=bytes(999)),
    "webp with XMP": saved(picture(), "WEBP", lossless=True, xmp=b'<a tiff:Orientation="3"/>'),
    **{f"gif {mode}": saved(picture(mode), "GIF") for mode in ("1", "L", "P", "RGB")},
    "gif transparent": saved(picture("P"), "GIF", transparency=3),
    "gif animated": saved(picture(), "GIF", loop=0, comment=b"no", **FRAMES),
}


@pytest.mark.parametrize("name", FILES)
def test_as_pillow_says(name: str) -> None:
    header = assert_as_pillow(FILES[name])
    assert unpack(pack(header)) == header._replace(header_nbytes=0)
    assert len(pack(header)) == PACKED_NBYTES


def test_the_files_reach_every_field() -> None:
    headers = [opened(data) for data in FILES.values()]
    assert {header.mode for header in headers} == set(MODES)
    assert {header.format for header in headers} == {"JPEG", "MPO", "PNG", "WEBP", "GIF"}
    assert {header.orientation for header in headers} == set(range(1, 9))
    assert {header.bits for header in headers} == {1, 2, 4, 8, 16}
    for yes in ("progressive", "several", "has_transparency", "may_have_metadata"):
        assert {getattr(header, yes) for header in headers} == {True, False}
    ultra = header_of(FILES["ultra hdr"])
    assert ultra is not None and ultra.several and ultra.format == "JPEG"


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith(("jpeg", "mpo", "ultra"))])
def test_a_jpeg_needs_its_header_only(name: str) -> None:
    data = FILES[name]
    header = header_of(data)
    assert header is not None and data[: header.header_nbytes].endswith((b"\0\x3f\0", b"\0\0\1"))
    assert header_of(data[: header.header_nbytes]) == header
    assert all(header_of(data[:nbytes]) is None for nbytes in range(min(header.header_nbytes, 3000)))


UNUSUAL = {
    "nothing": b"",
    "bmp": saved(picture(), "BMP"),
    "tiff": saved(picture(), "TIFF"),
    "12 bits": JPEG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "arithmetic": JPEG.replace(b"\xff\xc0\0\x11", b"\xff\xc9\0\x11"),
    "two frames": with_segments(JPEG, segment(0xC0, JPEG[JPEG.index(b"\xff\xc0") + 4 :][:15])),
    "no height": JPEG.replace(b"\x08\0\x15\0\x25", b"\x08\0\0\0\x25"),
    "junk between segments": JPEG[:2] + b"\0" + JPEG[2:],
    "exif twice": with_segments(JPEG, exif(3), exif(6)),
    "exif cut short": with_segments(JPEG, segment(0xE1, b"Exif\0\0" + tiff(6)[:30])),
    "exif with a value outside": with_segments(JPEG, segment(0xE1, b"Exif\0\0" + tiff(6)[:-1])),
    "an orientation of another type": with_segments(JPEG, exif(6, "<", 4)),
    "an index twice": with_segments(MPO, segment(0xE2, b"MPF\0" + tiff(1))),
    "an index without pictures": with_segments(JPEG, segment(0xE2, b"MPF\0" + tiff(1))),
    "an index of nothing": with_segments(JPEG, segment(0xE2, b"MPF\0")),
    "a text for EXIF": with_chunks(PNG, chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 8\n4d4d002a")),
    "a text for transparency": with_chunks(PNG, chunk(b"tEXt", b"transparency\0\x01")),
    "an orientation in a png's XMP": with_chunks(PNG, chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0tiff:Orientation>3")),
    "compressed XMP": with_chunks(PNG, chunk(b"zTXt", b"XML:com.adobe.xmp\0\0" + zlib.compress(b"tiff:Orientation>3"))),
    "png without palette": png_of(8, 3).replace(chunk(b"PLTE", bytes(range(6))), b""),
    "png of no such kind": png_of(2, 2),
    "webp without its EXIF": WEBP_EXIF[:-1],
    "gif cut short": FILES["gif P"][:-1],
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_pillow(name: str) -> None:
    assert header_of(UNUSUAL[name]) is None


def test_a_damaged_size_of_a_png_is_seen() -> None:
    damaged = bytearray(PNG)
    damaged[19] ^= 1
    assert header_of(bytes(damaged)) is None


@pytest.mark.parametrize(
    "packed",
    [
        *[b"", bytes(PACKED_NBYTES - 1), bytes(PACKED_NBYTES), bytes(PACKED_NBYTES + 1)],
        *[pack(opened(JPEG))[:8] + bytes(rest) for rest in ((8, 0, 0, 8), (4, 128, 0, 8), (4, 0, 5, 8), (4, 0, 0, 3))],
    ],
)
def test_what_pack_does_not_give_is_an_error(packed: bytes) -> None:
    with pytest.raises(ValueError, match="a packed header must"):
        unpack(packed)


def test_headers_are_packed_as_ever() -> None:
    """These bytes are what other releases read and write."""
    header = Header("GIF", "I;16", 0x01020304, 0x05060708, 8, True, True, 16, True)
    assert pack(header) == bytes([1, 2, 3, 4, 5, 6, 7, 8, 7, 0x3F, 4, 16]) and unpack(pack(header)) == header
    assert pack(Header("JPEG", "1", 1, 2, bits=1)) == bytes([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1])


def changed(rng: random.Random, data: bytes) -> bytes:
    """A file with some bytes of its beginning changed, left out or put in, or cut short."""
    buffer = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(buffer), rng.choice((40, 200, 800))))
        kind = rng.randrange(6)
        if kind <= 2:
            buffer[at] = rng.choice((0, 1, 0xFF, buffer[at] ^ 1 << rng.randrange(8), rng.randrange(256)))
        elif kind == 3:
            del buffer[at : at + rng.choice((1, 2, 12))]
        elif kind == 4:
            buffer[at:at] = buffer[max(0, at - rng.choice((1, 4, 12, 60))) : at]
        elif rng.randrange(4) == 0:
            del buffer[at:]
        if not buffer:
            return b""
    if buffer.startswith(b"\x89PNG") and len(buffer) > 33 and rng.randrange(2):
        buffer[29:33] = struct.pack(">I", zlib.crc32(buffer[12:29]))
    return bytes(buffer)


def with_mended_chunks(data: bytes) -> bytes:
    """A PNG whose checksums are right, so that Pillow, too, reads what was changed."""
    at, parts = 8, [data[:8]]
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        parts += [data[at:end], struct.pack(">I", zlib.crc32(data[at + 4 : end]))]
        at = end + 4
    return b"".join(parts)


def damaged_files(count: int) -> Iterator[bytes]:
    rng = random.Random(5)
    files = list(FILES.values())
    for _ in range(count):
        data = changed(rng, rng.choice(files))
        yield with_mended_chunks(data) if data.startswith(b"\x89PNG") and rng.randrange(4) else data


def test_damage_is_told_as_pillow_tells_it_or_not_at_all() -> None:
    same = unread = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about damaged metadata
        for data in damaged_files(200_000 if FULL else 10_000):
            header = header_of(data)
            if header is None:
                continue
            try:
                want = opened(data)
            except Exception:  # Pillow's errors for damaged files are of any class
                unread += 1
                continue
            assert header.may_have_metadata >= want.may_have_metadata
            assert header._replace(header_nbytes=0, may_have_metadata=want.may_have_metadata) == want, data[:300]
            same += 1
    assert same > 1000 and unread < same


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * 3_000_000,
        b"\xff\xd8" + segment(0xFE, b"") * 500_000,
        with_segments(JPEG, segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(65_000))),
        with_segments(JPEG, *[xmp(b"tiff:Orientation=" * 3000)] * 400),
        with_chunks(PNG, chunk(b"tEXt", b"a") * 200_000),
        b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\x02" + bytes(9) + b"ALPH\0\0\0\0" * 300_000,
        FILES["gif P"][:-1] + b"!\xfe\1a\0" * 500_000,
        FILES["gif P"][:-2] + b"\1a" * 1_000_000,
    ],
    ids=["fill bytes", "segments", "entries", "XMP", "texts", "chunks", "extensions", "blocks"],
)
def test_no_file_takes_long(data: bytes) -> None:
    start_s = time.thread_time()
    assert header_of(data) in (None, header_of(JPEG)) or data[:3] == b"\xff\xd8\xff"
    assert time.thread_time() - start_s < 0.25


@pytest.mark.parametrize("name", ["imagenet", "photos"])
def test_sample_sets(name: str) -> None:
    root = SAMPLES / name
    if not root.is_dir():
        pytest.skip(f"the sample set is not at hand ({root})")
    paths = sorted(path for path in root.glob("*/*") if path.suffix.lower() in {".jpg", ".jpeg"})
    left_to_pillow = 0
    for path in paths:
        data = path.read_bytes()
        if header_of(data) is None:
            left_to_pillow += 1
        else:
            assert_as_pillow(data)
    assert paths and left_to_pillow <= len(paths) // 100
