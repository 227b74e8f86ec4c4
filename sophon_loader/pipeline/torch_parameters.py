"""Lets parameters hold values of torch and torchvision: tensors, dtypes, lists of modules, enums, classes.

`op_registry.py` calls `add_torch_parameters` when it is imported, so every process that knows ops knows these values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode

from sophon_loader.pipeline.plain import (
    Writers,
    add_class,
    add_enum,
    add_kind,
    array_to_plain,
    read_array,
    read_items,
    to_plain,
)

_DTYPES = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.dtype)}
_TV_TENSORS = ("TVTensor", "Image", "Video", "Mask", "BoundingBoxes", "KeyPoints")
"""Classes that may be keys of v2.ToDtype's map; an older torchvision lacks some."""


def add_torch_parameters() -> None:
    """Let plain data hold values of torch's and torchvision's."""
    for enum in (InterpolationMode, AutoAugmentPolicy):
        add_enum(enum)
    add_class("torch.Tensor", torch.Tensor)
    for name in _TV_TENSORS:
        if hasattr(tv_tensors, name):
            add_class(f"tv_tensors.{name}", getattr(tv_tensors, name))
    add_kind("dtype", _dtype_to_plain, lambda fields: _DTYPES[fields["name"]])
    add_kind("tensor", _tensor_to_plain, lambda fields: torch.from_numpy(read_array(fields)))
    add_kind("modules", _modules_to_plain, lambda fields: nn.ModuleList(read_items(fields)))


def _dtype_to_plain(value: Any, _: Writers) -> dict[str, Any] | None:
    return {"name": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else None


def _tensor_to_plain(value: Any, _: Writers) -> dict[str, Any] | None:
    return array_to_plain(value.detach().cpu().numpy()) if type(value) is torch.Tensor else None


def _modules_to_plain(value: Any, writers: Writers) -> dict[str, Any] | None:
    return {"items": [to_plain(item, writers) for item in value]} if type(value) is nn.ModuleList else None
