"""`roi-jpeg`: the part of a file that is cut, why some are not, and that it never shows in the pixels."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader import native
from sophon_loader.encodings.registry import decode, encode
from sophon_loader.errors import EncodingError
from sophon_loader.pipeline import pushdown
from sophon_loader.pipeline.chain import Chain, Window, chain_of
from sophon_loader.pipeline.op import Region
from sophon_loader.pipeline.pushdown import NotCut, PartOfFile, part_of, run_from_file
from sophon_loader.pipeline.randomness import Draw
from tests.property.strategies import draws, image_files
from tests.support.drawn import examples
from tests.support.loaders import digest_of
from tests.support.pictures import picture

pytestmark = pytest.mark.skipif(not native.available, reason="the C extension is not built")

CROPS: dict[str, Any] = {
    "RandomResizedCrop v1": v1.RandomResizedCrop(16),
    "RandomResizedCrop v2": v2.RandomResizedCrop(16, antialias=True),
    "a small part": v1.RandomResizedCrop(16, scale=(0.01, 0.2)),
    "RandomCrop v1": v1.RandomCrop(24, pad_if_needed=True),
    "RandomCrop v2": v2.RandomCrop((12, 20), pad_if_needed=True),
    "CenterCrop v1": v1.CenterCrop(20),
    "CenterCrop v2": v2.CenterCrop((9, 31)),
}
FLIP = {"v1": v1.RandomHorizontalFlip(), "v2": v2.RandomHorizontalFlip()}


def jpeg(image: Image.Image, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **{"quality": 90, **how})
    return file.getvalue()


def photo(width: int = 300, height: int = 200, **how: Any) -> bytes:
    return jpeg(picture(width, height, 3), **how)


def of(crop: Any = None) -> Chain:
    return chain_of(v1.Compose([v1.RandomResizedCrop(32, scale=(0.1, 0.3)) if crop is None else crop, v1.ToTensor()]))


def found_part(data: bytes, chain: Chain | None = None, draw: Draw = Draw(1, 2, 3), **how: Any) -> PartOfFile | NotCut:  # noqa: B008
    chain = chain or of()
    with chain.isolated():
        return part_of(data, chain, draw, **how)


# --- which part -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_the_part_holds_the_region(subsampling: str, mode: str) -> None:
    image = picture(301, 203, 5).convert(mode)
    data = jpeg(image) if mode == "L" else jpeg(image, subsampling=subsampling)
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    chain = of()
    for index in range(20):
        part = found_part(data, chain, Draw(1, 0, index))
        assert isinstance(part, PartOfFile)
        assert len(part.data) < len(data)
        with chain.isolated():
            region = chain.region(301, 203, Draw(1, 0, index))
        window = part.window
        assert (window.full_width, window.full_height) == (301, 203)
        assert region is not None and window.kept.contains(region)
        got = Image.open(io.BytesIO(part.data)).convert("RGB")
        assert got.size == (window.kept.width, window.kept.height)
        left, top = region.left - window.kept.left, region.top - window.kept.top
        cut = got.crop((left, top, left + region.width, top + region.height))
        box = (region.left, region.top, region.left + region.width, region.top + region.height)
        assert cut.tobytes() == whole.crop(box).tobytes()


def _cmyk() -> bytes:
    return jpeg(picture(300, 200, 1).convert("CMYK"))


def _png() -> bytes:
    file = io.BytesIO()
    picture(300, 200, 1).save(file, "PNG")
    return file.getvalue()


REFUSED = {
    "progressive": (lambda: photo(progressive=True), "unsupported"),
    "CMYK": (_cmyk, "unsupported"),
    "PNG": (_png, "not a JPEG file"),
    "empty": (lambda: b"", "not a JPEG file"),
    "two bytes": (lambda: b"\xff\xd8", "not a JPEG file"),
    "text": (lambda: b"no picture at all", "not a JPEG file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_files_that_are_used_as_they_are(case: str) -> None:
    make, why = REFUSED[case]
    found = found_part(make())
    assert isinstance(found, NotCut) and why in found.reason


def test_a_file_without_its_end_is_cut_only_where_it_is_whole() -> None:
    """Where the region lies before the break there may be a part; else there is a reason, and never an exception."""
    data, chain = photo(), of()
    reasons = set()
    for length in range(0, len(data), 97):
        found = found_part(data[:length], chain)
        assert isinstance(found, (NotCut, PartOfFile))
        reasons.add(found.reason.split(":")[0] if isinstance(found, NotCut) else "cut")
    assert "corrupt" in reasons and "not a JPEG file" in reasons


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (None, "does not begin with a crop"),
        (v1.ToTensor(), "does not begin with a crop"),
        (v1.Compose([v1.Resize(30), v1.CenterCrop(20)]), "does not begin with a crop"),
        (v1.RandomHorizontalFlip(), "does not begin with a crop"),
        (v1.RandomCrop(8, padding=2), "the whole picture, or nearly so"),
        (v1.CenterCrop(500), "the whole picture, or nearly so"),
        (v1.Lambda(ImageOps.exif_transpose), "does not begin with a crop"),
    ],
    ids=str,
)
def test_pipelines_that_need_the_whole_file(transform: Any, why: str) -> None:
    found = found_part(photo(), chain_of(transform))
    assert isinstance(found, NotCut) and why in found.reason


def test_a_crop_of_all_of_it_saves_nothing() -> None:
    found = found_part(photo(), chain_of(v1.CenterCrop((200, 300))))
    assert isinstance(found, NotCut)


def test_max_share_is_a_limit() -> None:
    data, chain = photo(), chain_of(v1.CenterCrop((100, 150)))
    assert isinstance(found_part(data, chain, max_share=0.26), PartOfFile)
    assert "nearly so" in str(found_part(data, chain, max_share=0.24))


def test_without_the_extension_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", False)
    monkeypatch.setattr(native, "reason", "the C extension is not built")
    assert found_part(photo()) == NotCut("the C extension is not built")


# --- on the wire ----------------------------------------------------------------------------------------------


def part() -> PartOfFile:
    found = found_part(photo())
    assert isinstance(found, PartOfFile)
    return found


def test_a_part_comes_back() -> None:
    value = part()
    encoded = encode(value, "roi-jpeg")
    assert encoded.encoding == "roi-jpeg"
    assert decode("roi-jpeg", encoded.meta, memoryview(encoded.payload)) == value


@given(data=st.data())
@examples(150)
def test_wrong_bytes_are_an_error_of_the_encoding_or_a_part(data: st.DataObject) -> None:
    encoded = encode(_PART, "roi-jpeg")
    payload, meta = bytearray(encoded.payload), {k: list(v) for k, v in encoded.meta.items()}
    for _ in range(data.draw(st.integers(0, 4))):
        payload[data.draw(st.integers(0, 700))] = data.draw(st.integers(0, 255))
    odd = st.integers(-3, 400) | st.sampled_from([1 << 40, -1, 2.5, None, "x", True])
    name = data.draw(st.sampled_from(["size", "part"]))
    if data.draw(st.booleans()):
        meta[name][data.draw(st.integers(0, len(meta[name]) - 1))] = data.draw(odd)
    try:
        value = decode("roi-jpeg", meta, bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    except EncodingError:
        return
    kept, window = value.window.kept, value.window
    assert Region(0, 0, window.full_width, window.full_height).contains(kept)
    assert native.image_size(value.data) == (kept.width, kept.height)


_PART = PartOfFile(photo(120, 80), Window(Region(10, 20, 120, 80), 300, 200))


@pytest.mark.parametrize(
    "meta",
    [
        {"size": [300, 200], "part": [200, 20, 120, 80]},  # past the right border
        {"size": [300, 200], "part": [10, 130, 120, 80]},
        {"size": [300, 200], "part": [-1, 20, 120, 80]},
        {"size": [300, 200], "part": [10, 20, 119, 80]},  # not the payload's size
        {"size": [300, 200], "part": [10, 20, 0, 80]},
        {"size": [300, 200], "part": [10, 20, 120]},
        {"size": [300, 200]},
        {"part": [10, 20, 120, 80]},
        {"size": [300], "part": [10, 20, 120, 80]},
    ],
    ids=str,
)
def test_a_part_that_cannot_be(meta: dict[str, Any]) -> None:
    assert decode("roi-jpeg", {"size": [300, 200], "part": [10, 20, 120, 80]}, _PART.data) == _PART
    with pytest.raises(EncodingError, match=r"roi-jpeg|size"):
        decode("roi-jpeg", meta, _PART.data)


# --- the same pixels ------------------------------------------------------------------------------------------


def both(data: bytes, chain: Chain, draw: Draw, keep_info: bool = False) -> tuple[Any, Any]:
    """A pipeline on the whole file, and from the file by whichever way is taken."""
    with chain.isolated():
        whole = chain.run(data, 0, len(chain), draw)
        return whole, run_from_file(chain, data, len(chain), draw, keep_info=keep_info)


@given(data=image_files(8, 200), name=st.sampled_from(sorted(CROPS)), draw=draws(), flip=st.sampled_from(["v1", "v2"]))
@examples(200)
def test_the_part_shows_in_no_pixel(data: bytes, name: str, draw: Draw, flip: str) -> None:
    chain = chain_of(v1.Compose([CROPS[name], FLIP[flip], v1.ToTensor()]))
    whole, other = both(data, chain, draw)
    assert digest_of(whole) == digest_of(other)
    with chain.isolated():
        part = part_of(data, chain, draw)
        if isinstance(part, PartOfFile):  # also where it would not be worth the time
            meta = encode(part, "roi-jpeg").meta
            sent = decode("roi-jpeg", meta, part.data)
            finished = chain.run(sent.data, 0, len(chain), draw, window=sent.window)
            assert digest_of(finished) == digest_of(whole)


def test_large_pictures_too_and_the_part_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    crop = native.crop

    def noted(*arguments: Any) -> Any:
        used.append(1)
        return crop(*arguments)

    monkeypatch.setattr(native, "crop", noted)
    data = photo(640, 480, subsampling="4:2:0")
    for crop_op in (v1.RandomResizedCrop(64), v2.RandomResizedCrop(64), v1.CenterCrop(224), v1.RandomCrop(200)):
        chain = of(crop_op)
        for index in range(25):
            whole, other = both(data, chain, Draw(7, 1, index))
            assert digest_of(whole) == digest_of(other)
    assert len(used) > 50


def test_a_stop_before_the_crop_needs_the_whole_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushdown, "part_of", lambda *arguments, **more: pytest.fail("not to be cut"))
    data, chain = photo(), of()
    with chain.isolated():
        assert run_from_file(chain, data, 1, Draw(0, 0, 0), keep_info=False).size == (300, 200)


def test_what_looks_at_the_info_gets_the_whole_file_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushdown, "part_of", lambda *arguments, **more: pytest.fail("not to be cut"))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = photo(exif=exif, comment=b"kept")
    seen = []

    def look(image: Image.Image) -> Image.Image:
        seen.append((dict(image.info)["comment"], image.getexif()[0x0112]))
        return ImageOps.exif_transpose(image)

    chain = chain_of(v1.Compose([v1.RandomResizedCrop((16, 40), scale=(0.1, 0.2)), look, v1.ToTensor()]))
    assert chain.local_ops
    whole, other = both(data, chain, Draw(1, 1, 1), keep_info=bool(chain.local_ops))
    assert seen == [(b"kept", 6)] * 2
    assert tuple(whole.shape) == (3, 40, 16) and digest_of(whole) == digest_of(other)


@pytest.mark.parametrize("keep_info", [False, True])
def test_progress_is_told_for_every_op(keep_info: bool) -> None:
    data, chain = photo(), of()
    stages: list[int] = []
    with chain.isolated():
        run_from_file(
            chain, data, len(chain), Draw(1, 2, 3), keep_info=keep_info, after=lambda stage, _: stages.append(stage)
        )
    assert stages == [1, 2, 3]


def test_a_part_one_px_off_would_show() -> None:
    data, chain, draw = photo(), of(), Draw(1, 2, 3)
    whole, _ = both(data, chain, draw)
    part = found_part(data, chain, draw)
    assert isinstance(part, PartOfFile)
    kept = part.window.kept
    with chain.isolated():
        region = chain.region(300, 200, draw)
        assert region is not None
        for step in (-1, 1):
            moved = Region(kept.left + step, kept.top, kept.width, kept.height)
            if moved.contains(region):
                break
        wrong = chain.run(part.data, 0, len(chain), draw, window=Window(moved, 300, 200))
    assert digest_of(wrong) != digest_of(whole)
