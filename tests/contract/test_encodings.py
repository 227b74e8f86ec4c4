"""What every registered encoding must keep: lossless for what it takes, and never surprised by what it reads."""

from __future__ import annotations

import gc
import io
import json
import math
import resource
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo, iTXt
from PIL.TiffImagePlugin import IFDRational

from sophon_loader.encodings import catalogue
from sophon_loader.encodings.catalogue import CATALOGUE, INFO_CLASSES, PLAIN
from sophon_loader.encodings.encoding import MAX_PIXELS, Encoded
from sophon_loader.encodings.info import MoreThanPixels
from sophon_loader.encodings.registry import decode, encode, encodings
from sophon_loader.errors import EncodingError
from sophon_loader.pipeline.chain import decode as of_file
from tests.support.drawn import examples
from tests.support.encoding_examples import ACCEPTED, REFUSED, boxes, difference, image, jpeg, part_of_file, tensor
from tests.support.pictures import picture
from tests.unit.wire.strategies import PLAIN as ANYTHING

GOLDEN = Path(__file__).parents[1] / "data" / "encodings"
BUILT_IN = tuple(line.name for line in CATALOGUE)
MAY_TRY_HARDER = ("webp", "htj2k", "jpegls", "jxl", "lepton", "roi-lepton")
"""Encodings whose encoders may write other bytes one day, for the same value."""
ACCEPTED_CASES = [(name, case) for name, cases in ACCEPTED.items() if name in encodings() for case in cases]
REFUSED_CASES = [(name, case) for name, cases in REFUSED.items() if name in encodings() for case in cases]
every_accepted = pytest.mark.parametrize(("name", "case"), ACCEPTED_CASES)
every_encoding = pytest.mark.parametrize("name", sorted(encodings()))


# --- the registry ---------------------------------------------------------------------------------------------


def test_every_encoding_has_examples() -> None:
    assert set(BUILT_IN) == set(ACCEPTED) == set(REFUSED) == {*encodings(), *catalogue.missing()}


def test_the_length_of_a_payload_is_that_in_bytes() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    encoded = Encoded("other", {}, memoryview(values.data))
    assert len(encoded.payload) == values.nbytes and bytes(encoded.payload) == values.tobytes()
    with pytest.raises(TypeError):
        Encoded("other", {}, memoryview(values[:, ::2].data))


# --- lossless -------------------------------------------------------------------------------------------------


@every_accepted
def test_what_is_accepted_comes_back_bit_for_bit(name: str, case: str) -> None:
    encoding = encodings()[name]
    value = ACCEPTED[name][case]()
    assert encoding.accepts(value)
    encoded = encode(value, name)
    assert encoded.encoding == name
    meta = msgpack.unpackb(msgpack.packb(encoded.meta))  # as it crosses the wire
    assert difference(ACCEPTED[name][case](), value) == "", "encoding must not change the value"
    for payload in (bytes(encoded.payload), bytearray(encoded.payload), memoryview(bytes(encoded.payload))):
        assert difference(value, decode(name, meta, payload)) == ""
    assert len(encoded.payload) == memoryview(encoded.payload).nbytes


@every_accepted
def test_the_decoded_value_is_its_own(name: str, case: str) -> None:
    value = ACCEPTED[name][case]()
    encoded = encode(value, name)
    payload = bytearray(encoded.payload)
    again = decode(name, encoded.meta, payload)
    payload[:] = bytes(255 - byte for byte in payload)
    assert difference(value, again) == "", "the value must not alias the payload"
    payload.append(0)  # BufferError if the value held on to the buffer


@pytest.mark.parametrize(("name", "case"), REFUSED_CASES)
def test_what_cannot_be_carried_faithfully_is_refused(name: str, case: str) -> None:
    assert not encodings()[name].accepts(REFUSED[name][case]())


@pytest.mark.parametrize("value", [image(), image("L"), tensor(3, 4), np.ones(3)], ids=["rgb", "l", "tensor", "array"])
@pytest.mark.parametrize("wanted", [*BUILT_IN, "of-a-later-release", ""])
def test_a_value_goes_plainly_where_the_wanted_encoding_does_not_take_it(wanted: str, value: Any) -> None:
    encoded = encode(value, wanted)
    assert encoded.encoding in {wanted, *PLAIN}
    assert difference(value, decode(encoded.encoding, encoded.meta, encoded.payload)) == ""


@pytest.mark.parametrize(
    "value", [None, 3, "x", {"a": 1}, image("P"), torch.eye(2).to_sparse()], ids=lambda v: str(type(v))
)
def test_a_value_that_nothing_carries(value: Any) -> None:
    with pytest.raises(EncodingError, match="must be an image, a tensor or an array"):
        encode(value, "array")


@pytest.mark.parametrize(("make", "wanted", "allowed", "chosen"), [
    (image, "webp", ["webp"], "webp"), (image, "webp", ["pixels", "array"], "pixels"), (image, "webp", [], None),
    (image, "file", ["pixels"], "pixels"), (image, "file", ["file"], None), (image, "array", ["array"], None),
    (image, "of-a-later-release", ["of-a-later-release", "pixels"], "pixels"), (image, "pixels", ["webp"], None),
    (lambda: tensor(3, 4), "pixels", ["pixels"], None), (lambda: tensor(3, 4), "pixels", ["array"], "array"),
    (lambda: tensor(3, 4), "webp", ["webp", "pixels", "jxl"], None), (lambda: tensor(3, 4), "webp", None, "array"),
    (lambda: b"a file", "file", [], "file"), (part_of_file, "roi-jpeg", ["file", "pixels", "array"], None),
    (jpeg, "lepton", ["file", "roi-lepton"], None), (jpeg, "lepton", ["lepton"], "lepton"),
])  # fmt: skip
def test_only_what_is_allowed_is_used(make: Any, wanted: str, allowed: list[str] | None, chosen: str | None) -> None:
    if wanted in catalogue.missing():
        pytest.skip(catalogue.missing()[wanted])
    value = make()
    if chosen is not None:
        encoded = encode(value, wanted, allowed=allowed)
        assert encoded.encoding == chosen
        assert difference(value, decode(chosen, encoded.meta, encoded.payload)) == ""
        return
    assert allowed is not None
    with pytest.raises(EncodingError, match="must be one that the loader allows") as caught:
        encode(value, wanted, allowed=allowed)
    named = {name for name in encodings() if f"{name}, which" in str(caught.value) or f"{name} or" in str(caught.value)}
    takers = {name for name in (wanted, *PLAIN) if name in encodings() and encodings()[name].accepts(value)}
    assert str(allowed) in str(caught.value) and named == takers


def test_memory_layout_matters_to_an_op() -> None:
    """Why strides travel: a sum over a view rounds differently from one over the same numbers without gaps."""
    views = [tensor_of_normal_numbers(seed)[:, 20:244, 31:255] for seed in range(8)]
    assert any(view.sum() != view.contiguous().sum() for view in views)
    for view in views:
        encoded = encode(view, "array")
        assert decode("array", encoded.meta, encoded.payload).sum() == view.sum()


def tensor_of_normal_numbers(seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((3, 300, 400), np.float32))


def test_expanded_dims_are_sent_once_and_gaps_not_at_all() -> None:
    assert len(encode(torch.ones(1, 4).expand(1000, 4), "array").payload) == 16
    assert len(encode(tensor(3, 300, 400)[:, 5:7, 9:13], "array").payload) == 3 * 2 * 4 * 4


# --- info -----------------------------------------------------------------------------------------------------

INFO: dict[Any, Any] = {
    "dpi": (72, 72),
    "exif": b"Exif\0\0",
    "comment": "é",
    5: [1, 2.5, None, True],
    "jfif_unit": 1,
    "nested": {"a": b""},
}


@pytest.mark.parametrize("name", ["pixels", "webp"])
def test_an_images_info_travels_on_demand(name: str) -> None:
    value = image()
    value.info = dict(INFO)
    without, kept = encode(value, name), encode(value, name, keep_info=True)
    assert bytes(without.payload) == bytes(kept.payload), "info must not change the payload"
    assert decode(name, without.meta, without.payload).info == {}
    meta = msgpack.unpackb(msgpack.packb(kept.meta))
    assert decode(name, meta, kept.payload).info == INFO
    assert value.info == INFO
    value.info = {}
    assert "info" not in encode(value, name, keep_info=True).meta


def file_of(value: Image.Image, form: str = "JPEG", **how: Any) -> bytes:
    file = io.BytesIO()
    value.save(file, form, **how)
    return file.getvalue()


def _camera_jpeg() -> bytes:
    """Without JFIF's head, as cameras write it: the resolution stands in the Exif data, as rational numbers."""
    exif = Image.Exif()
    exif[0x011A] = exif[0x011B] = IFDRational(72, 1)
    exif[0x0128] = 2
    data = file_of(image(), "JPEG", exif=exif.tobytes())
    at = data.index(b"\xff\xe0")
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4], "big") :]


def _png() -> bytes:
    texts = PngInfo()
    texts.add_text("Comment", "plain")
    texts.add_itxt("Title", "Ä", "de", "Titel")
    return file_of(image(), "PNG", pnginfo=texts, dpi=(72, 72), icc_profile=b"icc", exif=b"Exif\0\0")


FILES = {
    "JPEG of a camera": _camera_jpeg,
    "JPEG": lambda: file_of(
        image(), dpi=(300, 300), icc_profile=b"icc" * 99, comment=b"hi", progressive=True, xmp=b"<x/>"
    ),
    "MPO": lambda: file_of(image(), "MPO", save_all=True, append_images=[image()]),
    "PNG": _png,
    "PNG with a transparent colour": lambda: file_of(image(), "PNG", transparency=(1, 2, 3)),
    "animated PNG": lambda: file_of(
        image(), "PNG", save_all=True, append_images=[image("L").convert("RGB")], duration=9
    ),
    "TIFF": lambda: file_of(image(), "TIFF", dpi=(72.5, 72), compression="tiff_lzw", icc_profile=b"icc"),
    "TIFF without a unit": lambda: file_of(
        image(), "TIFF", tiffinfo={282: IFDRational(0, 0), 283: IFDRational(1, 3), 296: 1}
    ),
    "WebP": lambda: file_of(image(), "WEBP", exif=b"Exif\0\0", icc_profile=b"icc", xmp=b"<x/>"),
    "GIF": lambda: file_of(image(), "GIF", save_all=True, append_images=[image()], duration=50, loop=0, comment=b"c"),
    "BMP": lambda: file_of(image(), "BMP", dpi=(72, 72)),
}


def _exactly(value: Any) -> Any:
    """A value with its type, its order and all that it keeps, to be compared."""
    if isinstance(value, dict):
        return [[_exactly(one) for one in pair] for pair in value.items()]
    if isinstance(value, (tuple, list)):
        return type(value), [_exactly(one) for one in value]
    kept = value.__getstate__() if isinstance(value, IFDRational) else getattr(value, "__dict__", None)
    return type(value), repr(value), repr(kept)


@pytest.mark.parametrize("form", FILES)
def test_what_pillow_finds_in_a_file_comes_back_exactly(form: str) -> None:
    value = of_file(FILES[form]())
    kept = encode(value, "pixels", keep_info=True)
    again = decode("pixels", msgpack.unpackb(msgpack.packb(kept.meta)), kept.payload)
    assert value.info and _exactly(again.info) == _exactly(value.info)


def test_some_files_have_values_of_pillows_own_classes() -> None:
    assert type(of_file(_png()).info["Title"]) is iTXt
    for form in ("JPEG of a camera", "TIFF", "TIFF without a unit"):
        info = of_file(FILES[form]()).info
        assert {type(one) for one in info.get("dpi") or info["resolution"]} == {IFDRational}, form


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_pillows_classes_go_to_loaders_that_know_them(form: str) -> None:
    value = of_file(FILES[form]())
    assert "info" in encode(value, "pixels", keep_info=True, allowed=["pixels", INFO_CLASSES]).meta
    with pytest.raises(MoreThanPixels, match="image info must be plain data"):
        encode(value, "pixels", keep_info=True, allowed=["pixels"])


class _Subclass(iTXt):
    pass


def _with_more(text: iTXt) -> iTXt:
    text.more = 1  # type: ignore[attr-defined]
    return text


@pytest.mark.parametrize("value", [
    _Subclass("a"), _with_more(iTXt("a")), IFDRational(0.5), {1, 2},
], ids=repr)  # fmt: skip
def test_a_value_that_would_not_come_back_the_same_does_not_travel(value: Any) -> None:
    with pytest.raises(MoreThanPixels):
        encode(_with_info({"k": value}), "pixels", keep_info=True)


def _with_info(info: dict[Any, Any]) -> Image.Image:
    value = image()
    value.info = info
    return value


@pytest.mark.parametrize("info", [
    {"f": lambda: 0}, {"o": object()}, {"big": 1 << 64}, {"small": -(1 << 63) - 1}, {"s": "\ud800"},
    {"long": bytes(5 << 20)},
], ids=lambda info: next(iter(info)))  # fmt: skip
def test_info_that_does_not_travel(info: dict[Any, Any]) -> None:
    value = image()
    value.info = info
    with pytest.raises(EncodingError, match="info"):
        encode(value, "pixels", keep_info=True)
    assert encode(value, "pixels").meta == {"mode": "RGB", "size": [7, 5]}


MALFORMED: list[dict[str, Any]] = [
    {"$": "iTXt"},
    {"$": "iTXt", "text": 5, "lang": "", "tkey": ""},
    {"$": "iTXt", "text": "", "lang": 5, "tkey": ""},
    {"$": "rational", "numerator": 1},
    {"$": "rational", "numerator": math.inf, "denominator": 2},
    {"$": "rational", "numerator": "1", "denominator": 1},
    {"$": "rational", "numerator": 1, "denominator": [2]},
]


@pytest.mark.parametrize("info", [
    5, None, [], "x", {"a": 1}, {"$": "tuple", "items": 5}, {"$": "tuple", "items": []}, {"$": []},
    *({"$": "dict", "items": [["k", value]]} for value in MALFORMED),
])  # fmt: skip
def test_info_off_the_wire_must_be_what_encode_writes(info: Any) -> None:
    encoded = encode(image(), "pixels")
    with pytest.raises(EncodingError):
        decode("pixels", {**encoded.meta, "info": info}, encoded.payload)


# --- what comes off the wire may be anything ------------------------------------------------------------------


def _decode_anything(name: str, meta: dict[str, Any], payload: Any) -> Any:
    """The value, or None after an EncodingError; any other exception fails the test."""
    try:
        return decode(name, meta, payload)
    except EncodingError as error:
        assert len(str(error)) < 2000, "an error text must stay readable, whatever was received"
        return None


def _mutations(meta: dict[str, Any]) -> list[dict[str, Any]]:
    wrong: list[Any] = [
        None, True, -1, 0, 3, 1 << 31, 1 << 62, 2.5, float("nan"), "x", "", b"x", [], [0], [1], [-1], [1 << 62], [2.5],
        ["x"], [[]], [None], [True], [1] * 17, [1] * 2000, [0, 1], [1, 0, 2], [0, 0, 0], [1 << 40, 1 << 40],
        [0, 1 << 62], [1 << 62, 1 << 62, 1 << 62, 1 << 62], [65535, 65535], [16383, 16383], {}, {"a": 1}, {1: [1]},
        msgpack.ExtType(5, b"x"), msgpack.Timestamp(1), "qint8", "float4_e2m1fn_x2", "float32", "Tensor", "onnx",
        "ndarray", "boxes", "image", "L", "CMYK", "P", "1",
    ]  # fmt: skip
    deep: Any = 1
    for _ in range(1020):
        deep = [deep]
    changed = [{**meta, key: value} for key in meta for value in [*wrong, deep]]
    for key, old in meta.items():
        if isinstance(old, list):
            for position in range(len(old)):
                for value in wrong:
                    changed.append({**meta, key: [*old[:position], value, *old[position + 1 :]]})
    return [*changed, *({k: v for k, v in meta.items() if k != key} for key in meta), {}]


MUTATED = {
    "file": ["bytes"],
    "pixels": ["RGB", "no width"],
    "array": ["expanded", "crop view", "array big-endian view", "tv boxes", "0-dim", "0-size", "tensor bool"],
    "webp": ["noise", "one colour"],
    "htj2k": ["noise", "one colour"],
    "jpegls": ["noise", "one colour"],
    "jxl": ["noise", "one colour"],
    "roi-jpeg": ["corner"],
    "lepton": ["rgb", "progressive", "more behind the end"],
    "roi-lepton": ["corner"],
}
MUTATED_CASES = [(name, case) for name, cases in MUTATED.items() if name in encodings() for case in cases]


@every_encoding
def test_an_attribute_that_an_op_has_given_an_image_is_not_lost(name: str) -> None:
    value = Image.new("RGB", (3, 2))
    value.of_mine = 1  # type: ignore[attr-defined]
    with pytest.raises(EncodingError, match=r"must have no attributes but PIL's own, got \['of_mine'\]"):
        encode(value, name)


@pytest.mark.parametrize(("name", "case"), MUTATED_CASES)
def test_mutated_meta(name: str, case: str) -> None:
    encoded = encode(ACCEPTED[name][case](), name)
    for meta in _mutations(encoded.meta):
        _decode_anything(name, meta, encoded.payload)


@pytest.mark.parametrize(("name", "case"), MUTATED_CASES)
def test_a_payload_of_another_length(name: str, case: str) -> None:
    encoded = encode(ACCEPTED[name][case](), name)
    payload = bytes(encoded.payload)
    for wrong in (b"", payload[:-1], payload[: len(payload) // 2], payload + b"\0", payload * 2, bytes(len(payload))):
        if name in ("pixels", "array") and len(wrong) != len(payload):
            with pytest.raises(EncodingError):
                decode(name, encoded.meta, wrong)
        else:
            _decode_anything(name, encoded.meta, wrong)


@pytest.mark.skipif("jpegls" not in encodings(), reason="imagecodecs is not installed, or has none")
def test_jpegls_that_breaks_off_among_zeros() -> None:
    """CharLS 2.4.3 counts zeros in search of a one, 2**31 of them behind the last byte: 5 s for each of these."""
    encoded = encode(ACCEPTED["jpegls"]["noise"](), "jpegls")
    decode("jpegls", encoded.meta, encoded.payload)  # loads what it needs
    since_s = time.process_time()
    decode("jpegls", encoded.meta, encoded.payload)
    whole_s = time.process_time() - since_s
    for kept in (100, 500, 1000):
        since_s = time.process_time()
        with pytest.raises(EncodingError, match="must be decodable"):
            decode("jpegls", encoded.meta, bytes(encoded.payload[:kept]) + b"\0")
        assert time.process_time() - since_s < 1000 * whole_s


@pytest.mark.parametrize("name", sorted(set(encodings()) - {"file", *PLAIN}))
@given(data=st.data())
@examples(200, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_payload(name: str, data: st.DataObject) -> None:
    encoded = encode(next(iter(ACCEPTED[name].values()))(), name)
    payload = bytearray(encoded.payload)
    for _ in range(data.draw(st.integers(1, 5))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    _decode_anything(name, encoded.meta, bytes(payload[: data.draw(st.integers(0, len(payload)))]))


@every_encoding
@given(
    meta=st.dictionaries(
        st.sampled_from(["size", "mode", "kind", "dtype", "shape", "strides", "info", "part"]), ANYTHING
    )
)
@examples(100)
def test_random_meta(name: str, meta: dict[str, Any]) -> None:
    _decode_anything(name, meta, b"0123456789")


@pytest.mark.parametrize("name", ["nothing", "", "File", "roi"])
def test_an_unknown_encoding(name: str) -> None:
    with pytest.raises(EncodingError, match="encoding must be one of"):
        decode(name, {}, b"")


HUGE: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "pixels": [
        ("pixels", {"mode": "RGB", "size": [1 << 20, 1 << 20]}),
        ("pixels", {"mode": "L", "size": [0, MAX_PIXELS]}),
    ],
    "array": [
        ("array", {"kind": "tensor", "dtype": "uint8", "shape": [1 << 30], "strides": [1]}),
        ("array", {"kind": "tensor", "dtype": "uint8", "shape": [2, 5], "strides": [1 << 40, 1]}),
        ("array", {"kind": "ndarray", "dtype": "float64", "shape": [10], "strides": [1 << 60]}),
        ("array", {"kind": "tensor", "dtype": "uint8", "shape": [10, 1 << 40], "strides": [1, 0]}),
    ],
    "webp": [("webp", {"size": [16383, 16383]}), ("webp", {"size": [8000, 8000]})],
    "jpegls": [("jpegls", {"size": [65535, 65535]}), ("jpegls", {"size": [8000, 8000]})],
    "roi-jpeg": [("roi-jpeg", {"size": [60000, 60000], "part": [0, 0, 60000, 60000]})],
}


@pytest.mark.parametrize(("name", "meta"), [one for name, many in HUGE.items() if name in encodings() for one in many])
def test_a_small_payload_never_takes_much_memory(name: str, meta: dict[str, Any]) -> None:
    payload = bytearray(encode(image(), "webp").payload) if name == "webp" else bytearray(10)
    if name == "webp":  # its own header is made to agree
        width, height = meta["size"]
        payload[21:25] = ((width - 1) | (height - 1) << 14).to_bytes(4, "little")
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EncodingError):
        decode(name, meta, bytes(payload))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "1 GiB"


@pytest.mark.skipif("jxl" not in encodings(), reason="imagecodecs is not installed")
@pytest.mark.parametrize(
    "size", [(1, 1), (8, 8), (256, 256), (257, 8), (12, 10), (640, 360), (3000, 1), (1, 9000), (48, 64)]
)
def test_jxl_sizes_are_read_before_decoding(size: tuple[int, int]) -> None:
    from sophon_loader.encodings.jxl import _size_of

    payload = encode(Image.new("RGB", size), "jxl").payload
    assert _size_of(payload) == size
    with pytest.raises(EncodingError, match="of the size in its header"):
        decode("jxl", {"size": [size[0] + 1, size[1]]}, payload)


@pytest.mark.skipif("htj2k" not in encodings(), reason="imagecodecs is not installed, or has none")
def test_htj2k_sizes_are_read_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    from sophon_loader.encodings.htj2k import _size_of

    for size in ((1, 1), (257, 8), (3000, 1), (1, 9000)):
        encoded = encode(image(size=size), "htj2k")
        assert _size_of(encoded.payload) == size
        with pytest.raises(EncodingError, match="must have the headers of this encoding"):
            decode("htj2k", {"size": [size[0] + 1, size[1]]}, encoded.payload)
    monkeypatch.setattr("imagecodecs.htj2k_decode", pytest.fail)
    payload = encode(image(size=(50, 40)), "htj2k").payload
    sides = {"width": 8, "height": 12, "left": 16, "top": 20, "width of a tile": 24, "tile's left": 32}
    # Others: capabilities, number of components, bits of one; CAP, COD, QCD; the tile, its length, parts, the end.
    others = (6, 40, 42, 58, 65, 70, 83, len(payload) - 1)
    part = bytes(payload).index(b"\xff\x90\x00\x0a")
    for at in (*sides.values(), *others, part + 5, part + 9, part + 11, part + 13):
        changed = bytearray(payload)
        changed[at] ^= 1
        with pytest.raises(EncodingError, match="must have the headers of this encoding"):
            decode("htj2k", {"size": [50, 40]}, bytes(changed))
    for length in range(len(payload)):
        assert _size_of(payload[:length]) is None
    with pytest.raises(EncodingError, match="not be too large"):
        decode(
            "htj2k", {"size": [1 << 14, 1 << 13]}, bytes(payload[:8]) + _sides(1 << 14, 1 << 13) + bytes(payload[40:])
        )


@pytest.mark.skipif("htj2k" not in encodings(), reason="imagecodecs is not installed, or has none")
def test_htj2k_may_have_any_comment_or_none() -> None:
    encoded = encode(image(size=(50, 40)), "htj2k")
    payload = bytes(encoded.payload)
    comment, part = payload.index(b"\xff\x64"), payload.index(b"\xff\x90\x00\x0a")
    for other in (b"", b"\xff\x64\x00\x0a\x00\x01OpenJP"):
        again = decode("htj2k", encoded.meta, payload[:comment] + other + payload[part:])
        assert again == decode("htj2k", encoded.meta, payload)


@pytest.mark.skipif("htj2k" not in encodings(), reason="imagecodecs is not installed, or has none")
def test_htj2k_errors_in_the_midst_of_an_image_are_raised() -> None:
    """imagecodecs 2026.3 hands them to `sys.unraisablehook` and gives an image that lacks px; later ones raise."""
    encoded = encode(picture(64, 64, 1), "htj2k")
    payload = bytes(encoded.payload)
    hook, found = sys.unraisablehook, set()
    for at in range(120, len(payload), 37):
        try:
            decode("htj2k", encoded.meta, payload[:at] + bytes([payload[at] ^ 255]) + payload[at + 1 :])
        except EncodingError as error:
            found.add(str(error).partition(":")[0])
        assert sys.unraisablehook is hook
    if tuple(map(int, version("imagecodecs").split("."))) <= (2026, 3, 6):
        assert "htj2k must be a whole codestream" in found
    else:
        assert {"htj2k must be a whole codestream", f"htj2k payload of {len(payload)} bytes must be decodable"} & found


def _sides(width: int, height: int) -> bytes:
    """Of a codestream of one tile: its own, the offset, the tile's, the offset."""
    return b"".join(side.to_bytes(4, "big") for side in 2 * (width, height, 0, 0))


# --- stored bytes ---------------------------------------------------------------------------------------------


def golden_values() -> dict[str, Any]:
    """Made without a random generator, so that they are the same for ever."""
    ramp = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) * 4
    picture = Image.frombytes("RGB", (5, 4), ramp.tobytes())
    return {
        "pixels-rgb": picture,
        "pixels-l": Image.frombytes("L", (5, 4), ramp[..., 0].tobytes()),
        "array-float": torch.arange(6, dtype=torch.float32).reshape(2, 3),
        "array-bfloat16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "array-channels-last": torch.from_numpy(ramp).permute(2, 0, 1),
        "array-crop-view": torch.arange(20, dtype=torch.int16).reshape(4, 5)[1:3, 1:4],
        "array-expanded": torch.tensor([[1.5], [2.5]]).expand(2, 4),
        "array-boxes": boxes(),
        "array-big-endian-reversed": np.arange(3, dtype=">i4")[::-1],
        "webp-rgb": picture,
        "htj2k-rgb": picture,
        "jpegls-rgb": picture,
        "jxl-rgb": picture,
        "roi-jpeg-part": part_of_file(),
        "lepton-rgb": (GOLDEN / "rgb.jpg").read_bytes(),
        "roi-lepton-part": part_of_file(data=(GOLDEN / "rgb.jpg").read_bytes()),
    }


def golden_names() -> list[str]:
    return sorted(path.stem for path in GOLDEN.glob("*.json"))


def test_there_are_stored_bytes_of_every_encoding_that_has_a_format() -> None:
    assert golden_names() == sorted(golden_values())
    assert set(map(encoding_of, golden_names())) == set(BUILT_IN) - {"file"}


def encoding_of(stem: str) -> str:
    """The encoding whose stored bytes go by that name."""
    return next(name for name in BUILT_IN if stem.startswith(name))


@pytest.mark.parametrize("stem", golden_names())
def test_stored_bytes_mean_the_same_for_ever(stem: str) -> None:
    name, value = encoding_of(stem), golden_values()[stem]
    if name not in encodings():
        pytest.skip(catalogue.missing()[name])
    meta, payload = json.loads((GOLDEN / f"{stem}.json").read_text()), (GOLDEN / f"{stem}.bin").read_bytes()
    assert difference(value, decode(name, meta, payload)) == ""
    if name not in MAY_TRY_HARDER:
        encoded = encode(value, name)
        assert (encoded.meta, bytes(encoded.payload)) == (meta, payload)
