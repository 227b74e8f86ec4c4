"""Values that each encoding must carry, values that it must refuse, and what it means to be equal."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from sophon_loader.kinds.image.part import PartOfFile, Region, Window

Make = Callable[[], Any]


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random uint8 numbers."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def image(mode: str = "RGB", size: tuple[int, int] = (7, 5), seed: int = 0) -> Image.Image:
    """A small image of any mode; noise where the mode has bytes."""
    bands = len(Image.new(mode, (1, 1)).getbands())
    rows = noise(size[1], size[0], bands, seed=seed)
    if mode in ("L", "LA", "RGB", "YCbCr", "HSV", "RGBA", "CMYK") and rows.size:
        return Image.frombytes(mode, size, rows.tobytes())
    return Image.new(mode, size)


def tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Any bits at all of the dtype: NaNs with payloads, subnormals, negative zeros."""
    flat = torch.from_numpy(noise(int(np.prod(shape)) * dtype.itemsize, seed=seed))
    bits = flat & 1 if dtype is torch.bool else flat
    return bits.view(dtype).reshape(shape)


def boxes(**also: Any) -> tv_tensors.BoundingBoxes:
    """Two boxes."""
    return tv_tensors.BoundingBoxes(
        torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]]), canvas_size=(30, 40), **({"format": "CXCYWH"} | also)
    )


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128, torch.float8_e4m3fn),
]


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


_TENSORS: dict[str, Make] = {
    **{f"tensor {str(dtype)[6:]}": partial(tensor, 3, 4, 5, dtype=dtype) for dtype in DTYPES},
    "0-dim": lambda: torch.tensor(2.5),
    "0-dim bool": lambda: torch.tensor(True),
    "0-size": lambda: torch.empty(3, 0, 4),
    "0-size of a slice": lambda: tensor(4, 6)[:, 2:2],
    "1 element": lambda: tensor(1, 1, 1),
    "16 dims": lambda: tensor(*[1] * 14, 2, 3),
    "channels last": lambda: tensor(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "hwc seen as chw": lambda: tensor(6, 7, 3, dtype=torch.uint8).permute(2, 0, 1),
    "transposed": lambda: tensor(4, 6).T,
    "1 channel, channels last": lambda: tensor(2, 1, 4, 5).contiguous(memory_format=torch.channels_last),
    "crop view": lambda: tensor(3, 20, 30)[:, 5:15, 7:20],
    "crop view of hwc": lambda: tensor(20, 30, 3).permute(2, 0, 1)[:, 5:15, 7:20],
    "every second": lambda: tensor(3, 8, 10)[..., ::2, ::2],
    "one column": lambda: tensor(9, 7)[:, 3],
    "expanded": lambda: tensor(3, 1, 4).expand(3, 5, 4),
    "expanded twice": lambda: tensor(1, 4, 1).expand(6, 4, 7),
    "all expanded": lambda: torch.tensor(1.5).expand(2, 3),
    "expanded transposed": lambda: tensor(4, 1).expand(4, 3).T,
    "conjugated": lambda: tensor(3, 4, dtype=torch.complex64).conj(),
    "negated by the view": lambda: tensor(3, dtype=torch.complex64).conj().imag,
    "inference": lambda: _inferred(),
    "tv image": lambda: tv_tensors.Image(tensor(3, 6, 7, dtype=torch.uint8)),
    "tv image, hwc": lambda: tv_tensors.Image(tensor(6, 7, 3, dtype=torch.uint8).permute(2, 0, 1)),
    "tv video": lambda: tv_tensors.Video(tensor(2, 3, 4, 5, dtype=torch.uint8)),
    "tv mask": lambda: tv_tensors.Mask(tensor(6, 7, dtype=torch.uint8)),
    "tv boxes": boxes,
    "tv boxes, unclamped": lambda: boxes(clamping_mode=None),
    "tv boxes, rotated": lambda: tv_tensors.BoundingBoxes(tensor(2, 5), format="XYWHR", canvas_size=(3, 4)),
    "tv boxes, none": lambda: tv_tensors.BoundingBoxes(torch.empty(0, 4), format="XYXY", canvas_size=(3, 4)),
}


def _noise_of(dtype: str) -> np.ndarray:
    return noise(3, 4, 16)[..., : np.dtype(dtype).itemsize].copy().view(dtype)


_ARRAYS: dict[str, Make] = {
    **{
        f"array {name}": partial(_noise_of, name)
        for name in ("uint8", "int16", "uint32", "int64", "float16", "float32", "float64", "complex64", "complex128")
    },
    "array bool": lambda: noise(3, 4) > 100,
    "array 0-dim": lambda: np.array(3.5),
    "array 0-size": lambda: np.empty((0, 3), np.int16),
    "array fortran": lambda: np.asfortranarray(noise(4, 5, 3)),
    "array negative strides": lambda: noise(5, 6, 3)[:, ::-1],
    "array negative strides all": lambda: noise(5, 6, 3)[::-1, ::-1, ::-1],
    "array negative steps": lambda: noise(9, 6).astype(np.float32)[::-2, 1:5],
    "array crop view": lambda: noise(20, 30, 3)[3:9, 5:11],
    "array broadcast": lambda: np.broadcast_to(noise(3, 1), (3, 4)),
    "array read-only": lambda: _read_only(noise(4, 5)),
    "array of an image": lambda: np.asarray(image()),
    "array big-endian": lambda: np.arange(12, dtype=">f4").reshape(3, 4),
    "array big-endian view": lambda: np.arange(24, dtype=">i8").reshape(4, 6)[::-1, ::2].T,
    "array of 1 reversed": lambda: np.ones(1)[::-1],
}

_JPEG = (
    "ffd8ffe000104a46494600010100000100010000ffdb004300100b0c0e0c0a100e0d0e1211101318281a181616183123251d283a333d3c"
    "3933383740485c4e404457453738506d51575f626768673e4d71797064785c656763ffc0000b080010002001011100ffc4001400010000"
    "0000000000000000000000000000ffc40014100100000000000000000000000000000000ffda0008010100003f000000ffd9"
)
"""A grey JPEG file of 32 x 16 px."""

ACCEPTED: dict[str, dict[str, Make]] = {
    "file": {
        "bytes": lambda: b"\xff\xd8 and so on",
        "empty": lambda: b"",
    },
    "pixels": {
        **{mode: partial(image, mode) for mode in ("L", "LA", "RGB", "YCbCr", "HSV", "RGBA", "CMYK")},
        "one px": lambda: image(size=(1, 1)),
        "no width": lambda: image(size=(0, 4)),
        "no height": lambda: image(size=(4, 0)),
    },
    "array": {**_TENSORS, **_ARRAYS},
    "webp": {
        "noise": lambda: image(size=(33, 21)),
        "one px": lambda: image(size=(1, 1)),
        "one colour": lambda: Image.new("RGB", (64, 64), (1, 2, 3)),
        "wide": lambda: image(size=(16383, 1)),
        "tall": lambda: image(size=(1, 16383)),
        "a tail of odd size": lambda: image(size=(17, 13), seed=4),
    },
}


ACCEPTED["jxl"] = {case: ACCEPTED["webp"][case] for case in ("noise", "one px", "one colour", "a tail of odd size")}
ACCEPTED["jpegls"] = {**ACCEPTED["jxl"], "wide": lambda: image(size=(65535, 1)), "tall": lambda: image(size=(1, 65535))}
ACCEPTED["htj2k"] = {**ACCEPTED["jxl"], "wide": lambda: image(size=(3000, 1)), "tall": lambda: image(size=(2, 3000))}
ACCEPTED["roi-jpeg"] = {"corner": lambda: part_of_file(), "all of it": lambda: part_of_file((0, 0), (32, 16))}
ACCEPTED["lepton"] = {
    "rgb": lambda: jpeg(),
    "grey": lambda: jpeg(mode="L"),
    "one px": lambda: jpeg(size=(1, 1)),
    "progressive": lambda: jpeg(progressive=True),
    "not subsampled": lambda: jpeg(subsampling=0),
    "its own huffman codes": lambda: jpeg(optimize=True),
    "restart markers": lambda: jpeg(restart_marker_rows=1),
    "a comment": lambda: jpeg(comment=b"from a camera"),
    "more behind the end": lambda: jpeg() + b"a second picture, say",
}
ACCEPTED["roi-lepton"] = {
    "corner": lambda: part_of_file(data=jpeg(size=(32, 16))),
    "all of it": lambda: part_of_file((0, 0), (32, 16), jpeg(size=(32, 16))),
}


def jpeg(size: tuple[int, int] = (50, 40), mode: str = "RGB", **options: Any) -> bytes:
    """A JPEG file of noise.

    Args:
        size: (width, height) in px.
        mode: of the image.
        options: for Pillow.
    """
    file = io.BytesIO()
    image(mode, size).save(file, "JPEG", **options)
    return file.getvalue()


def part_of_file(
    at: tuple[int, int] = (16, 8), whole: tuple[int, int] = (100, 90), data: bytes = bytes.fromhex(_JPEG)
) -> PartOfFile:
    """A part of 32 x 16 px; the file is not cut out of another one."""
    return PartOfFile(data, Window(Region(*at, 32, 16), *whole))


def _huge_jpeg() -> bytes:
    """The header says 60 000 px a side."""
    data = bytearray(jpeg())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = 2 * (60_000).to_bytes(2, "big")
    return bytes(data)


class _Subclass(torch.Tensor):
    pass


def _inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3) * 2


def _quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather not have it
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def _tagged() -> torch.Tensor:
    value = tensor(3)
    value.tag = "seen by a later op"  # type: ignore[attr-defined]
    return value


def _unaligned() -> np.ndarray:
    return np.frombuffer(bytes(17), np.uint8)[1:].view(np.float64)


class _ImageSubclass(Image.Image):
    pass


def _of_subclass() -> Image.Image:
    found = _ImageSubclass()
    found.__dict__.update(image().__dict__)
    return found


_NOT_ARRAYS: dict[str, Make] = {
    "number": lambda: 3,
    "list": lambda: [torch.ones(2)],
    "image": image,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta device": lambda: torch.empty(3, device="meta"),
    "quantised": lambda: _quantised(),
    "wants a gradient": lambda: torch.ones(3, requires_grad=True),
    "subclass": lambda: torch.ones(3).as_subclass(_Subclass),
    "with an attribute": _tagged,
    "17 dims": lambda: torch.ones([1] * 17),
    "overlapping": lambda: torch.arange(9).unfold(0, 4, 1),
    "spread out": lambda: torch.empty(1 << 31, dtype=torch.uint8)[:: (1 << 31) - 1],
    "array of objects": lambda: np.array([None, 1]),
    "array of text": lambda: np.array(["a"]),
    "array of dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
    "records": lambda: np.zeros(3, "f4,u1"),
    "field of records": lambda: np.zeros(3, "f4,u1")["f0"],
    "long double": lambda: np.zeros(2, np.longdouble),
    "masked": lambda: np.ma.array([1, 2]),
    "unaligned": _unaligned,
}
REFUSED: dict[str, dict[str, Make]] = {
    "file": {
        "bytearray": lambda: bytearray(b"abc"),
        "memoryview": lambda: memoryview(b"abc"),
        "text": lambda: "x",
        "none": lambda: None,
        "image": image,
        "tensor": lambda: tensor(2),
    },
    "pixels": {
        **{mode: partial(image, mode) for mode in ("1", "P", "I", "F", "I;16", "PA", "LAB", "RGBX")},
        "tensor": lambda: tensor(3, 4, 4),
        "bytes": lambda: b"x",
        "subclass": _of_subclass,
        "too many rows": lambda: Image.new("L", (0, (1 << 20) + 1)),
    },
    "array": _NOT_ARRAYS,
    "webp": {
        **{mode: partial(image, mode) for mode in ("L", "RGBA", "P", "CMYK")},
        "no width": lambda: image(size=(0, 3)),
        "too wide": lambda: Image.new("RGB", (16384, 1)),
        "too many px": lambda: Image.new("RGB", (8193, 8192)),
        "tensor": lambda: tensor(3, 4, 4),
        "subclass": _of_subclass,
    },
}


REFUSED["jxl"] = {**REFUSED["webp"], "bytes": lambda: b"x"}
del REFUSED["jxl"]["too wide"]
REFUSED["htj2k"] = REFUSED["jxl"]
REFUSED["jpegls"] = {**REFUSED["jxl"], "too wide": lambda: Image.new("RGB", (65536, 1))}
REFUSED["roi-jpeg"] = {"image": image, "bytes": lambda: b"x", "tensor": lambda: tensor(2)}
REFUSED["roi-lepton"] = {
    **REFUSED["roi-jpeg"],
    "a JPEG file": lambda: jpeg(),
    "too many px": lambda: part_of_file(data=_huge_jpeg()),
}
REFUSED["lepton"] = {
    **REFUSED["file"],
    "no picture": lambda: b"x",
    "nothing": lambda: b"",
    "half a header": lambda: jpeg()[:50],
    "another format": lambda: b"\x89PNG" + jpeg(),
    "too many px": _huge_jpeg,
    "too large": lambda: jpeg() + bytes(1 << 25),
    "part of a file": lambda: part_of_file(),
}


def difference(value: Any, again: Any) -> str:
    """What tells the two apart for an op, "" for nothing."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "" if type(again) is bytes and again == bytes(value) else "bytes"
    if type(value) is not type(again):
        return f"type {type(value)} {type(again)}"
    if isinstance(value, PartOfFile):
        return "" if value == again else "part of file"
    facts = _facts(value), _facts(again)
    return "" if facts[0] == facts[1] else f"{facts[0]} {facts[1]}"


def _facts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes() if min(value.size) else b""
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor).resolve_conj().resolve_neg().contiguous().reshape(-1)
        strides = [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1] if value.numel() else []
        return str(value.dtype), list(value.shape), strides, sorted(vars(value).items()), _bits(plain)
    strides = [s for s, n in zip(value.strides, value.shape, strict=True) if n > 1] if value.size else []
    return value.dtype.str, value.shape, strides, np.ascontiguousarray(value).tobytes()


def _bits(flat: torch.Tensor) -> bytes:
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
