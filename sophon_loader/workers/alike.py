"""Whether two values are alike, and where they are not: images, tensors, arrays, and what holds them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image


def difference(one: Any, other: Any, *, values: bool = True) -> tuple[str, str, str] | None:
    """Where two values differ, and what is there in either; None when they are alike in structure, types and bits.

    Args:
        values: False to compare structure and types only.
    """
    if type(one) is not type(other):
        return "", kind_of(one), kind_of(other)
    if isinstance(one, torch.Tensor):
        forms = [(x.dtype, *(tuple(x.shape) if values else ())) for x in (one, other)]
        alike = forms[0] == forms[1] and not (values and _bytes(one) != _bytes(other))
    elif isinstance(one, np.ndarray):
        forms = [(x.dtype, *(x.shape if values else ())) for x in (one, other)]
        alike = forms[0] == forms[1] and not (values and one.dtype != object and one.tobytes() != other.tobytes())
    elif isinstance(one, Image.Image):
        alike = one.mode == other.mode and not (values and (one.size, one.tobytes()) != (other.size, other.tobytes()))
    elif isinstance(one, Mapping):
        return _first(one.keys() == other.keys(), one, other, ((f"[{key!r}]", key) for key in one), values=values)
    elif isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        same = len(one) == len(other)
        return _first(same, one, other, ((f"[{i}]", i) for i in range(len(one))), values=values)
    else:
        alike = not values or repr(one) == repr(other) or bool(one == other)
    return None if alike else ("", kind_of(one, values=True), kind_of(other, values=True))


def _first(
    same: bool, one: Any, other: Any, keys: Iterable[tuple[str, Any]], *, values: bool
) -> tuple[str, str, str] | None:
    if not same:
        return "", kind_of(one, values=True), kind_of(other, values=True)
    for where, key in keys:
        found = difference(one[key], other[key], values=values)
        if found is not None:
            return where + found[0], found[1], found[2]
    return None


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def kind_of(value: Any, *, values: bool = False) -> str:
    """A value in a few words.

    Args:
        values: it is of the same type and shape as another one, and has other values.
    """
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"a {type(value).__name__} of {value.dtype}{list(value.shape)}" + (
            " with other values" if values else ""
        )
    if isinstance(value, bytes):
        return f"{len(value)} bytes" + (" with other values" if values else "")
    if isinstance(value, Image.Image):
        return f"an Image of mode {value.mode}, {value.width} x {value.height} px"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{reprlib.repr(value)} ({type(value).__name__})"
