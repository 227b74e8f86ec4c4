"""`array`: tensors, tv_tensors and numpy arrays of any dtype and shape, uncompressed.

The order of the dimensions in memory is kept, because an op may take another code path (with another rounding)
for a channels-last tensor; expanded dimensions (stride 0) are sent once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torchvision import tv_tensors

from sophon_loader.encodings.encoding import Encoded, Payload
from sophon_loader.errors import EncodingError

_KINDS: dict[str, type] = {
    "tensor": torch.Tensor,
    "ndarray": np.ndarray,
    "image": tv_tensors.Image,
    "video": tv_tensors.Video,
    "mask": tv_tensors.Mask,
    "boxes": tv_tensors.BoundingBoxes,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}
MAX_DIMS = 16
_NUMPY_DTYPES = {"bool", "complex64", "complex128", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}


class ArrayEncoding:
    """Meta: `kind`, `dtype`, `shape`, `order` (dims from slowest to fastest), `once` (expanded dims)."""

    name = "array"

    def accepts(self, value: Any) -> bool:
        if type(value) is np.ndarray:
            return value.dtype.name in _NUMPY_DTYPES and value.ndim <= MAX_DIMS
        return (
            type(value) in _KIND_OF
            and value.layout is torch.strided
            and value.device.type == "cpu"
            and not value.is_quantized
            and value.dim() <= MAX_DIMS
        )

    def encode(self, value: Any) -> Encoded:
        kind = _KIND_OF[type(value)]
        tensor = _tensor_of(value) if kind == "ndarray" else value.detach().as_subclass(torch.Tensor)
        meta: dict[str, Any] = {"kind": kind, "dtype": _dtype_name(tensor.dtype), "shape": list(tensor.shape)}
        if kind == "boxes":
            meta |= {"format": value.format.name, "canvas": list(value.canvas_size)}
        once = [d for d in range(tensor.dim()) if tensor.stride(d) == 0 and tensor.shape[d] > 1]
        for dim in once:
            tensor = tensor.narrow(dim, 0, 1)
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        flat = tensor.resolve_conj().resolve_neg().permute(order).contiguous().reshape(-1)
        payload = flat.view(torch.uint8).numpy().data if flat.numel() else b""
        return Encoded(self.name, meta | {"order": order, "once": once}, payload)

    def decode(self, meta: dict[str, Any], payload: Payload) -> Any:
        try:
            tensor = _read(meta, payload)
            return _wrap(meta, tensor)
        except (
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            RuntimeError,
            OverflowError,
        ) as error:
            raise EncodingError(f"array payload must fit its header, got {meta}: {error}") from error


def _tensor_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    # torch takes neither read-only nor reversed nor byte-swapped arrays.
    plain = array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if plain else array.astype(array.dtype.newbyteorder("="), order="C"))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _read(meta: dict[str, Any], payload: Payload) -> torch.Tensor:
    dtype, shape = getattr(torch, meta["dtype"]), meta["shape"]
    if not isinstance(dtype, torch.dtype) or len(shape) > MAX_DIMS or min(shape, default=0) < 0:
        raise EncodingError(f"array must have a dtype of torch's and a sane shape, got {meta}")
    sent = [1 if d in meta["once"] else n for d, n in enumerate(shape)]
    if math.prod(sent) * dtype.itemsize != len(payload) or math.prod(shape) > 1 << 40:
        raise EncodingError(f"array payload must hold {sent} of {dtype}, got {len(payload)} bytes")
    order = meta["order"]
    if sorted(order) != list(range(len(shape))):
        raise EncodingError(f"array order must permute the dimensions, got {order}")
    data = torch.empty(len(payload), dtype=torch.uint8)
    if len(payload):
        data.numpy()[:] = np.frombuffer(payload, np.uint8)
    stored = data.view(dtype).reshape([sent[d] for d in order])
    return stored.permute(np.argsort(order).tolist()).expand(shape)


def _wrap(meta: dict[str, Any], tensor: torch.Tensor) -> Any:
    kind = meta["kind"]
    if kind == "ndarray":
        return tensor.numpy()
    if kind == "boxes":
        box_format = tv_tensors.BoundingBoxFormat[meta["format"]]
        return tv_tensors.BoundingBoxes(tensor, format=box_format, canvas_size=tuple(meta["canvas"]))
    cls = _KINDS[kind]
    return tensor if cls is torch.Tensor else tensor.as_subclass(cls)
