"""`array`: tensors, tv_tensors and numpy arrays of any dtype and shape, uncompressed.

The layout in memory is a part of the value: an op may take another code path, with another rounding, for a
channels-last tensor or for a view with gaps (a crop). So strides travel, but the bytes in the gaps do not, and
expanded dimensions (stride 0) are sent once.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from sophon_loader.encodings.encoding import Encoded, Encoding, Payload
from sophon_loader.encodings.estimate import Exact, UsedAt
from sophon_loader.errors import EncodingError

MAX_DIMS = 16
"""Maximum number of dimensions of a value: more than any picture, clip or batch of them has."""
MAX_SPAN_NBYTES = 1 << 30
"""Maximum distance between the first and the last byte of a value, in bytes."""
MAX_ELEMENTS = 1 << 32
"""Maximum number of elements, with those of expanded dimensions: a short payload must not become a huge value."""
_MAX_SIZE = 1 << 40
"""Upper bound of sizes and strides off the wire, so that products of a few of them are cheap to calculate."""
_KINDS: dict[str, type] = {
    "tensor": torch.Tensor,
    "ndarray": np.ndarray,
    "image": tv_tensors.Image,
    "video": tv_tensors.Video,
    "mask": tv_tensors.Mask,
    "boxes": tv_tensors.BoundingBoxes,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMPY_DTYPES = ("bool", *_INTEGERS, "complex64", "complex128", "float16", "float32", "float64")
_TORCH_ONLY = ("bfloat16", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in (*_NUMPY_DTYPES, *_TORCH_ONLY)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_BOX_ATTRIBUTES = frozenset(("format", "canvas_size", "clamping_mode"))


class ArrayEncoding(Encoding):
    """Meta: `kind`, `dtype`, `shape`, `strides` (in elements), and fields of some kinds only.

    A tensor of the kind `boxes` has `format`, `canvas`, `clamping`; a big-endian array has `swapped`. Payload: the
    elements in the order in which they lie in memory, little-endian, without gaps; dimensions of stride 0 once.
    """

    name = "array"
    used_at = UsedAt.ANY_STAGE
    estimate = Exact()

    def accepts(self, value: Any) -> bool:
        if type(value) is np.ndarray:
            steps = all(stride % value.itemsize == 0 for stride in value.strides)
            known = value.dtype.name in _NUMPY_DTYPES and value.flags.aligned and steps
            return known and _fits(value.shape, _elements(value), value.itemsize)
        kind = _KIND_OF.get(type(value))
        if kind is None:
            return False
        attributes = _BOX_ATTRIBUTES if kind == "boxes" else frozenset()
        return (
            value.layout is torch.strided
            and value.device.type == "cpu"
            and value.dtype in _NAMES
            and not value.requires_grad
            and vars(value).keys() <= attributes
            and _fits(value.shape, value.stride(), value.dtype.itemsize)
        )

    def encode(self, value: Any) -> Encoded:
        kind = _KIND_OF[type(value)]
        if kind == "ndarray":
            meta = {"kind": kind, "dtype": value.dtype.name, "shape": list(value.shape), "strides": _elements(value)}
            if not value.dtype.isnative:
                meta["swapped"] = True
            tensor = _tensor_of(value)
        else:
            tensor = value.as_subclass(torch.Tensor)
            strides = list(tensor.stride())
            meta = {"kind": kind, "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "strides": strides}
            if kind == "boxes":
                meta |= {"format": value.format.name, "canvas": [int(n) for n in value.canvas_size]}
                if hasattr(value, "clamping_mode"):  # not every version of torchvision has it
                    meta["clamping"] = value.clamping_mode
            tensor = tensor.resolve_conj().resolve_neg()
        return Encoded(self.name, meta, _dense(tensor, meta["strides"]))

    def decode(self, meta: dict[str, Any], payload: Payload) -> Any:
        try:
            tensor = _read(meta, payload)
            return _array(meta, tensor) if meta["kind"] == "ndarray" else _wrap(meta, tensor)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise EncodingError(
                f"array payload must fit its header, got {reprlib.repr(meta)}: {error!r:.200}"
            ) from None


def _elements(array: np.ndarray[Any, Any]) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def _fits(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return True if the sizes are within limits, and no two elements overlap except by a stride of 0."""
    if len(shape) > MAX_DIMS or math.prod(shape) > MAX_ELEMENTS:
        return False
    span = 1
    for stride, n in sorted((abs(stride), n) for n, stride in zip(shape, strides, strict=True) if n > 1 and stride):
        if stride < span:
            return not math.prod(shape)  # nothing overlaps in an empty value
        span += (n - 1) * stride
    return span * itemsize <= MAX_SPAN_NBYTES or not math.prod(shape)


def _in_memory_order(shape: Sequence[int], strides: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the dimensions from the slowest to the fastest, and the sizes sent (1 for an expanded dimension)."""
    order = sorted(range(len(shape)), key=lambda d: -abs(strides[d]))
    sent = []
    for n, stride in zip(shape, strides, strict=True):
        expanded = n > 1 and stride == 0
        sent.append(1 if expanded else n)
    return order, sent


def _tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    # torch takes neither read-only nor reversed nor byte-swapped arrays.
    if array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0:
        return torch.from_numpy(array)
    forward = _flipped(array, _elements(array))
    return torch.from_numpy(forward.astype(array.dtype.newbyteorder("="), order="C"))


def _flipped(array: np.ndarray[Any, Any], strides: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the array with its dimensions of negative stride reversed."""
    if min(strides, default=0) >= 0:
        return array
    return array[tuple(slice(None, None, -1 if stride < 0 else 1) for stride in strides)]


def _dense(tensor: torch.Tensor, strides: Sequence[int]) -> Payload:
    order, sent = _in_memory_order(tensor.shape, strides)
    for dim, n in enumerate(sent):
        tensor = tensor.narrow(dim, 0, n)
    flat = tensor.permute(order).contiguous().reshape(-1)
    if flat.stride(0) != 1:  # a single element out of an expanded tensor counts as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format).as_strided([1], [1])
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _read(meta: dict[str, Any], payload: Payload) -> torch.Tensor:
    dtype, shape, strides = _DTYPES[meta["dtype"]], meta["shape"], meta["strides"]
    signed = meta["kind"] == "ndarray"
    if not (_are_sizes(shape) and _are_sizes(strides, signed) and len(shape) == len(strides)):
        raise ValueError("shape and strides must be lists of as many sizes")
    if not _fits(shape, strides, dtype.itemsize):
        raise ValueError("shape and strides must be within the limits")
    order, sent = _in_memory_order(shape, strides)
    count = math.prod(sent)
    strides = [abs(stride) for stride in strides]
    if count * dtype.itemsize != len(payload):
        raise ValueError(f"{sent} of {dtype} must be sent, got {len(payload)} bytes")
    image = torch.empty(len(payload), dtype=torch.uint8, device="cpu")
    if count:
        image.numpy()[:] = np.frombuffer(payload, np.uint8)
    span = 1 + sum((n - 1) * stride for n, stride in zip(sent, strides, strict=True))
    elements = image.view(dtype)
    if 0 < count < span:
        gapped = torch.empty(span, dtype=dtype, device="cpu")
        gapped.as_strided(sent, strides).permute(order).copy_(elements.reshape([sent[d] for d in order]))
        elements = gapped
    return elements.as_strided(shape, strides)


def _are_sizes(values: Any, signed: bool = False) -> bool:
    least = -_MAX_SIZE if signed else 0
    return isinstance(values, list) and all(type(n) is int and least <= n < _MAX_SIZE for n in values)


def _array(meta: dict[str, Any], tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    array = tensor.numpy()
    if meta.get("swapped"):
        array.byteswap(inplace=True)
        array = array.view(array.dtype.newbyteorder())
    return _flipped(array, meta["strides"])


def _wrap(meta: dict[str, Any], tensor: torch.Tensor) -> torch.Tensor:
    cls = _KINDS[meta["kind"]]
    if cls is tv_tensors.BoundingBoxes:
        clamping = {"clamping_mode": meta["clamping"]} if "clamping" in meta else {}
        box_format = tv_tensors.BoundingBoxFormat[meta["format"]]
        height, width = meta["canvas"]
        if type(height) is not int or type(width) is not int:
            raise ValueError("canvas must be [height, width]")
        boxes: torch.Tensor = cls(tensor, format=box_format, canvas_size=(height, width), **clamping)
        return boxes
    wrapped: torch.Tensor = tensor if cls is torch.Tensor else tensor.as_subclass(cls)
    return wrapped
