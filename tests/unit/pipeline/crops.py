"""Pipelines that read a part of a picture."""

from __future__ import annotations

from typing import Any

from timm.data import transforms as timm
from torchvision import transforms as v1
from torchvision.transforms import v2

CROPS: dict[str, Any] = {}
"""By name; those that pad, refuse or read all of it do so for small images only."""
for _prefix, _module in (("v1", v1), ("v2", v2)):
    CROPS |= {
        f"{_prefix}.RandomResizedCrop": _module.RandomResizedCrop(16),
        f"{_prefix}.RandomResizedCrop, narrow": _module.RandomResizedCrop((9, 7), (0.5, 1.0), (0.1, 0.2)),
        f"{_prefix}.RandomResizedCrop, never fits": _module.RandomResizedCrop(8, (5.0, 6.0), (0.8, 1.2)),
        f"{_prefix}.RandomResizedCrop, never fits, flat": _module.RandomResizedCrop(8, (5.0, 6.0), (3.0, 4.0)),
        f"{_prefix}.RandomCrop": _module.RandomCrop((13, 8)),
        f"{_prefix}.RandomCrop, padding": _module.RandomCrop(12, padding=2),
        f"{_prefix}.RandomCrop, if needed": _module.RandomCrop((9, 20), pad_if_needed=True),
        f"{_prefix}.CenterCrop": _module.CenterCrop((11, 14)),
        f"{_prefix}.CenterCrop, even": _module.CenterCrop(8),
        f"{_prefix}, a flip first": _module.Compose([_module.RandomHorizontalFlip(), _module.RandomResizedCrop(16)]),
        f"{_prefix}, both flips first": _module.Compose(
            [_module.RandomVerticalFlip(), _module.RandomHorizontalFlip(), _module.CenterCrop((11, 14))]
        ),
        f"{_prefix}, a flip behind": _module.Compose([_module.RandomCrop(8), _module.RandomHorizontalFlip()]),
        f"{_prefix}, evaluation": _module.Compose([_module.Resize(19), _module.CenterCrop(12)]),
        f"{_prefix}, evaluation, bicubic": _module.Compose([_module.Resize(40, 3), _module.CenterCrop((9, 12))]),
        f"{_prefix}, two crops": _module.Compose([_module.RandomCrop(12), _module.CenterCrop((5, 7))]),
        f"{_prefix}, a crop of a resized crop": _module.Compose([_module.RandomResizedCrop(16), _module.RandomCrop(9)]),
        f"{_prefix}, grey first": _module.Compose([_module.Grayscale(3), _module.RandomResizedCrop(16)]),
    }
CROPS |= {
    "v2.RGB first": v2.Compose([v2.RGB(), v2.RandomResizedCrop(16)]),
    "timm.RandomResizedCrop": timm.RandomResizedCropAndInterpolation(16),
    "timm.RandomResizedCrop, random": timm.RandomResizedCropAndInterpolation((9, 7), interpolation="random"),
    "timm.RandomResizedCrop, never fits": timm.RandomResizedCropAndInterpolation(8, (5.0, 6.0), (0.8, 1.2)),
    "timm.CenterCropOrPad": timm.CenterCropOrPad([11, 14]),
}
