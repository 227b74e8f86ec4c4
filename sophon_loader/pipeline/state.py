"""Compares two objects' state, to find out if they would behave alike."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn


class _Empty:
    """Has a `__dict__` and nothing else."""


def same_state(a: Any, b: Any) -> bool:
    """Return True if two objects would behave alike: same classes and equal attributes, all the way down.

    Args:
        a, b: any objects. NaN is not equal to itself, so an object that holds one equals only itself.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return _tensor_layout(a) == _tensor_layout(b) and bool(torch.equal(a, b))
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides) and bool(np.array_equal(a, b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_state, a, b))
    if isinstance(a, Mapping):
        return list(a) == list(b) and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, partial):
        return same_state((a.func, a.args, a.keywords, vars(a)), (b.func, b.args, b.keywords, vars(b)))
    if _keeps_state_outside_dict(a):
        return bool(a == b)
    return same_state(_attributes(a), _attributes(b))


def _keeps_state_outside_dict(value: Any) -> bool:
    """True if `vars` would not show all of an object's state: numbers, functions, types, slots.

    An object larger than an empty Python object has fields of its own.
    """
    return not hasattr(value, "__dict__") or type(value).__basicsize__ > _Empty.__basicsize__


def _tensor_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    # Strides too: a product with a transposed matrix rounds differently.
    strides = tensor.stride() if tensor.numel() else ()
    return tensor.dtype, tensor.shape, strides, tensor.device, tensor.requires_grad


def _attributes(value: Any) -> dict[str, Any]:
    attributes = dict(vars(value))
    # `training` has no effect on a transform of torchvision's or timm's, and Module.eval() changes it.
    if isinstance(value, nn.Module) and type(value).__module__.startswith(("torchvision.", "torch.nn.", "timm.")):
        attributes.pop("training", None)
    return attributes
