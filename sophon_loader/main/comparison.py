"""Whether `dataset[i]` is what its parts give: `(transform(image), target(i))`, as the protocol promises.

A dataset with `root`, `transform`, `key` and `target` may do more in its `__getitem__`: convert the image, return a
third value, transform image and label together. Offloaded it would lose that without a word, so a few are compared.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.pipeline.chain import decode, isolated
from sophon_loader.pipeline.op import GENERATORS
from sophon_loader.pipeline.randomness import seed_generators

COMPARED = 3
"""Samples of each dataset: the first, the last, and one between."""
_SEED = 20240710


def unlike_its_parts(data: Offloadable) -> str | None:
    """What `dataset[i]` has that its parts do not give, for the datasets that promise it; None when they agree.

    Also None where a sample's file cannot be read on this host, since there is nothing to compare with. The caller's
    generators are left as they are.
    """
    for source, owner in zip(data.sources, data.owners, strict=True):
        length = len(owner) if source.promised else 0
        for row in sorted({0, length // 2, length - 1}) if length else ():
            found = _difference(owner, source, row)
            if found is not None:
                return found
    return None


def _difference(owner: Any, source: Source, row: int) -> str | None:
    name = f"dataset[{row}]"
    try:
        with open(os.path.join(str(source.root), source.keys[row]), "rb") as file:
            data = file.read()
    except OSError:
        return None
    with isolated(GENERATORS):
        theirs = _outcome(lambda: owner[row])
        transform = owner.transform
        parts = [_outcome(lambda: decode(data) if transform is None else transform(decode(data))) for _ in range(2)]
        targets = [_outcome(lambda: source.target(row)) for _ in range(2)]
    if isinstance(theirs, _Raised):
        return None if isinstance(parts[0], _Raised) else f"{name} raises {theirs.text}, its file and transform do not"
    if isinstance(parts[0], _Raised):
        return f"transform raises {parts[0].text} for the file of {name}, which itself does not"
    if type(theirs) is not tuple or len(theirs) != 2:
        return f"{name} is {_kind(theirs)} and not a tuple of image and target"
    for position, (what, (one, again)) in enumerate((("transform(image)", parts), (f"target({row})", targets))):
        # One that is not the same twice under the same seeds has random numbers of its own.
        steady = difference(one, again) is None
        found = difference(theirs[position], one, values=steady)
        if found is not None:
            return f"{name}[{position}]{found[0]} is {found[1]}, where {what} gives {found[2]}"
    return None


class _Raised:
    """An exception in place of a value."""

    def __init__(self, error: Exception) -> None:
        self.text = f"{type(error).__name__}: {error}"


def _outcome(make: Callable[[], Any]) -> Any:
    seed_generators(GENERATORS, _SEED)
    try:
        return make()
    except Exception as error:  # the boundary to the user's dataset
        return _Raised(error)


def difference(one: Any, other: Any, *, values: bool = True) -> tuple[str, str, str] | None:
    """Where two values differ, and what is there in either; None when they are alike in structure, types and bits.

    Args:
        values: False to compare structure and types only.
    """
    if type(one) is not type(other):
        return "", _kind(one), _kind(other)
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
    return None if alike else ("", _kind(one, values=True), _kind(other, values=True))


def _first(
    same: bool, one: Any, other: Any, keys: Iterable[tuple[str, Any]], *, values: bool
) -> tuple[str, str, str] | None:
    if not same:
        return "", _kind(one, values=True), _kind(other, values=True)
    for where, key in keys:
        found = difference(one[key], other[key], values=values)
        if found is not None:
            return where + found[0], found[1], found[2]
    return None


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _kind(value: Any, *, values: bool = False) -> str:
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return f"a {type(value).__name__} of {value.dtype}{list(value.shape)}" + (
            " with other values" if values else ""
        )
    if isinstance(value, Image.Image):
        return f"an Image of mode {value.mode}, {value.width} x {value.height} px"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{reprlib.repr(value)} ({type(value).__name__})"
