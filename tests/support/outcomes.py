"""What a piece of code does, in values that can be compared: its value or error, its warnings, what it draws."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from sophon_loader.kinds.image.deferred import plain


@dataclass(frozen=True)
class Outcome:
    """What a piece of code has done.

    Args:
        value: what it gave, as `seen` has it; None if it failed.
        error: class and text; None if it did not fail.
        warned: class and text of each warning, in order.
        drawn: states of the generators afterwards.
    """

    value: Any
    error: tuple[type, str] | None
    warned: list[tuple[type, str]]
    drawn: Any


def outcome_of(run: Callable[[], Any], seed: int = 0) -> Outcome:
    """Run it with generators of this seed."""
    torch.manual_seed(seed)
    np.random.seed(seed % (1 << 32))
    random.seed(seed)
    value = error = None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            value = seen(run())
        except Exception as raised:
            error = type(raised), text_of(raised)
    drawn = torch.get_rng_state().numpy().tobytes(), numpy_state(), random.getstate()
    return Outcome(value, error, [(one.category, str(one.message)) for one in warned], drawn)


def numpy_state() -> Any:
    """The state of NumPy's generator, in what can be compared; its text takes 5 ms."""
    name, keys, *rest = np.random.get_state()
    return name, np.asarray(keys).tobytes(), *rest


def text_of(error: object) -> str:
    """Its text without addresses in memory."""
    return re.sub(r"0x[0-9a-fA-F]+", "0x", str(error))


def seen(value: Any) -> Any:
    """All that code could tell of a value, in what can be compared; images are looked at."""
    if isinstance(value, Image.Image):
        image = plain(value)
        palette = None if image.palette is None else (image.palette.mode, bytes(image.palette.palette))
        return type(image), image.mode, image.size, image.tobytes(), seen(dict(image.info)), palette
    if isinstance(value, torch.Tensor):
        pixels = value.as_subclass(torch.Tensor)
        return type(value), value.dtype, value.shape, value.stride(), pixels.contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.shape, value.strides, value.tobytes()
    if isinstance(value, dict):
        return {name: seen(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [seen(one) for one in value]
    return value if isinstance(value, (int, float, str, bytes, type(None))) else (type(value), text_of(value))
