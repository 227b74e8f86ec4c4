"""Splits a dataset's `transform` into steps: nested Compose objects, and presets that hold a pipeline.

It knows torchvision's `weights.transforms()` for classification, and classes like those of torchvision's reference
scripts, whose `__call__` is `return self.transforms(image)` and nothing else.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.pipeline.op_catalogue import op_type_of
from sophon_loader.pipeline.replaced import replaced_in_transform
from sophon_loader.pipeline.state import same_state

_COMPOSES = (v1.Compose, v2.Compose, nn.Sequential)


def steps_of(transform: Any) -> list[Any]:
    """Return the steps of a transform, in order; itself alone if it cannot be split."""
    inner = _held(transform)
    if inner is not None:
        return steps_of(inner)
    if replaced_in_transform(type(transform), functions=False):
        return [transform]
    if type(transform) in _COMPOSES and _is_plain(transform):
        return [step for one in _inside(transform) for step in steps_of(one)]
    return _classification(transform) or [transform]


def _inside(compose: Any) -> list[Any]:
    return list(compose if isinstance(compose, nn.Sequential) else compose.transforms)


def _is_plain(compose: Any) -> bool:
    """True if calling it only runs its steps one by one: it has no hooks and no patched attributes."""
    own = ("transforms", "_modules", "training")
    bare = nn.Module() if isinstance(compose, nn.Module) else v1.Compose([])
    extra = {key: value for key, value in vars(compose).items() if key not in own}
    return same_state(extra, {key: value for key, value in vars(bare).items() if key not in own})


def _classification(preset: Any) -> list[Any]:
    """Return the steps of torchvision's ImageClassification, which is no public class; [] for anything else."""
    cls: Any = type(preset)
    if (cls.__module__, cls.__name__) != ("torchvision.transforms._presets", "ImageClassification"):
        return []
    try:
        same = cls(
            crop_size=preset.crop_size[0],
            resize_size=preset.resize_size[0],
            mean=preset.mean,
            std=preset.std,
            interpolation=preset.interpolation,
            antialias=preset.antialias,
        )
    except (AttributeError, TypeError, IndexError):  # another release, or changed by hand
        return []
    if not same_state(same, preset):
        return []
    return [
        v1.Resize(same.resize_size, same.interpolation, antialias=same.antialias),
        v1.CenterCrop(same.crop_size),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float),
        v1.Normalize(same.mean, same.std),
    ]


def _only_calls(self: Any, image: Any) -> Any:
    return self.transforms(image)


_ONLY_CALLS = _only_calls.__code__
_ALIKE = ("co_code", "co_argcount", "co_kwonlyargcount", "co_freevars")
_FLAGS = 0xFFFF & ~inspect.CO_NESTED
"""Bits of `co_flags` that say what a function does. Higher bits are imports from the future, and in 3.14 docstrings and
methods. A class defined inside a function works the same, so its bit is left out."""


def _held(transform: Any) -> Any | None:
    """Return the Compose of an object that only calls it, like the presets of torchvision's reference scripts; or
    None."""
    call = getattr(type(transform), "__call__", None)  # noqa: B004  # what it does matters, not whether it can be called
    code = getattr(call, "__code__", None)
    if code is None or isinstance(transform, nn.Module):
        return None
    if len(code.co_names) != 1 or any(getattr(code, name) != getattr(_ONLY_CALLS, name) for name in _ALIKE):
        return None
    if (code.co_flags ^ _ONLY_CALLS.co_flags) & _FLAGS:
        return None
    held = getattr(transform, "__dict__", {}).get(code.co_names[0])
    return held if type(held) in _COMPOSES and op_type_of(transform) is None else None
