"""Cases of docs/programs.md: constructions of every registered op, and whole pipelines.

Ops are written as a reader types them, since the page shows them so; pictures are 160 x 120 px there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
from timm.data import auto_augment, random_erasing
from timm.data import transforms as timm_transforms
from torch import nn
from torchvision import models
from torchvision import transforms as v1
from torchvision.transforms import v2

BOTH = """
AugMix()
AutoAugment()
CenterCrop(100)
CenterCrop(200)
ColorJitter(0.4, 0.4, 0.4)
ColorJitter(hue=0.1)
Compose([RandomResizedCrop(100), RandomHorizontalFlip()])
ConvertImageDtype(torch.float32)
ElasticTransform()
GaussianBlur(3)
Grayscale(1)
Grayscale(3)
LinearTransformation(torch.eye(12), torch.zeros(12))
Normalize([0.5], [0.2])
PILToTensor()
Pad(4)
Pad(4, padding_mode="reflect")
RandAugment()
RandomAdjustSharpness(2)
RandomAffine(10)
RandomApply([CenterCrop(80)])
RandomAutocontrast()
RandomChoice([CenterCrop(80), Resize(50)])
RandomCrop(100)
RandomCrop(100, padding=4)
RandomCrop(200, pad_if_needed=True)
RandomEqualize()
RandomErasing()
RandomGrayscale()
RandomHorizontalFlip()
RandomInvert()
RandomOrder([CenterCrop(80), Resize(50)])
RandomPerspective()
RandomPosterize(4)
RandomResizedCrop(100)
RandomRotation(10)
RandomRotation(90, expand=True)
RandomSolarize(128)
RandomVerticalFlip()
Resize(100)
ToPILImage()
ToTensor()
TrivialAugmentWide()
"""
"""Ops that torchvision has in `transforms` and in `transforms.v2`."""
V2_ONLY = """
GaussianNoise()
Identity()
JPEG(50)
RGB()
RandomChannelPermutation()
RandomPhotometricDistort()
RandomResize(60, 100)
RandomShortestSize(100)
RandomZoomOut()
ScaleJitter((100, 100))
ToDtype(torch.float32, scale=True)
ToImage()
ToPureTensor()
"""
TORCH = """
Identity()
Sequential(CenterCrop(100))
"""
TIMM = """
AugmentOp("Rotate")
AugmentOp("Sharpness")
CenterCropOrPad(100)
CenterCropOrPad(200)
MaybePILToTensor()
MaybeToTensor()
RandomCropOrPad(100)
RandomCropOrPad(200)
RandomErasing(device="cpu")
RandomPad((200, 200))
RandomResizedCropAndInterpolation(100)
ResizeKeepRatio(100)
ResizeKeepRatio(100, longest=1)
ToTensor()
TrimBorder(4)
augment_and_mix_transform("augmix-m5-w4-d2")
auto_augment_transform("original-mstd0.5")
auto_augment_transform("3a")
rand_augment_transform("rand-m7-mstd0.5-inc1")
"""
_OF_TIMM = {**vars(auto_augment), **vars(random_erasing), **vars(timm_transforms)}
_WHERE: dict[str, tuple[str, dict[str, Any]]] = {
    "v1": (BOTH, {**vars(v1), "torch": torch}),
    "v2": (BOTH + V2_ONLY, {**vars(v2), "torch": torch}),
    "torch.nn": (TORCH, {**vars(nn), "CenterCrop": v2.CenterCrop}),
    "timm": (TIMM, _OF_TIMM),
}


@dataclass(frozen=True)
class Construction:
    """An op as a reader types it.

    Args:
        where: `v1`, `v2`, `torch.nn` or `timm`.
        text: the expression.
    """

    where: str
    text: str

    def make(self) -> Any:
        """A fresh transform."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what torchvision will drop
            return eval(self.text, dict(_WHERE[self.where][1]))


CONSTRUCTIONS = tuple(
    Construction(where, text) for where, (texts, _) in _WHERE.items() for text in texts.splitlines() if text
)


# --- pipelines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """A transform of a whole sample.

    Args:
        title: what the page calls it, in Markdown.
        make: builds it.
    """

    title: str
    make: Callable[[], Any]


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _weights(text: str) -> Pipeline:
    cls, name = text.split(".")
    return Pipeline(f"`{text}.transforms()`", lambda: _found(cls)[name].transforms())


def _found(cls: str) -> Any:
    return next(getattr(one, cls) for one in (models, models.detection, models.segmentation) if hasattr(one, cls))


def _before_tensor(*ops: Any) -> Any:
    return v1.Compose([*ops, v1.PILToTensor(), v1.ConvertImageDtype(torch.float), v1.Normalize(_MEAN, _STD)])


def _reference(*augmenting: Any) -> Any:
    """The classification preset of torchvision's reference scripts for training, random erasing included."""
    crop = v1.RandomResizedCrop(224)
    return v1.Compose([*_before_tensor(crop, v1.RandomHorizontalFlip(), *augmenting).transforms, v1.RandomErasing(0.1)])


def _reference_v2() -> Any:
    augmenting = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide()]
    last = [v2.PILToTensor(), v2.ToDtype(torch.float, scale=True), v2.Normalize(_MEAN, _STD), v2.ToPureTensor()]
    return v2.Compose([*augmenting, *last])


def _moco() -> Any:
    """Two views of self-supervised training begin like this one."""
    jitter, blur = v1.ColorJitter(0.4, 0.4, 0.2, 0.1), v1.GaussianBlur(23)
    random = (v1.RandomApply([jitter], 0.8), v1.RandomGrayscale(0.2), v1.RandomApply([blur], 0.5))
    return _before_tensor(v1.RandomResizedCrop(224), *random, v1.RandomHorizontalFlip())


def _jitter_first() -> Any:
    return _before_tensor(v1.ColorJitter(0.4, 0.4, 0.4), v1.RandomResizedCrop(224), v1.RandomHorizontalFlip())


def _timm(what: str, **given: Any) -> Pipeline:
    shown = ", ".join(f"{name}={value!r}".replace("'", '"') for name, value in given.items())
    make = partial(timm.data.create_transform, 224, **given, is_training=what == "train")
    return Pipeline(f"timm, {what}: `{shown}`" if given else f"timm, {what}", make)


PIPELINES = (
    _weights("ResNet50_Weights.IMAGENET1K_V1"),
    _weights("ResNet50_Weights.IMAGENET1K_V2"),
    _weights("ViT_L_16_Weights.IMAGENET1K_SWAG_E2E_V1"),
    _weights("FasterRCNN_ResNet50_FPN_Weights.COCO_V1"),
    _weights("DeepLabV3_ResNet50_Weights.COCO_WITH_VOC_LABELS_V1"),
    Pipeline("`RandomResizedCrop`, flip", _reference),
    Pipeline("`RandomResizedCrop`, flip, `TrivialAugmentWide`", lambda: _reference(v1.TrivialAugmentWide())),
    Pipeline("`RandomResizedCrop`, flip, `RandAugment`", lambda: _reference(v1.RandAugment())),
    Pipeline("`RandomResizedCrop`, flip, `AutoAugment`", lambda: _reference(v1.AutoAugment())),
    Pipeline("`RandomResizedCrop`, flip, `AugMix`", lambda: _reference(v1.AugMix())),
    Pipeline("v2: `RandomResizedCrop`, flip, `TrivialAugmentWide`", _reference_v2),
    Pipeline("`RandomResizedCrop`, jitter, grey, blur, flip (MoCo)", _moco),
    Pipeline("`ColorJitter` before `RandomResizedCrop`", _jitter_first),
    Pipeline(
        "`Resize(256)`, `RandomCrop(224)`, flip",
        lambda: _before_tensor(v1.Resize(256), v1.RandomCrop(224), v1.RandomHorizontalFlip()),
    ),
    Pipeline(
        "`RandomCrop(224, padding=28, pad_if_needed=True)`",
        lambda: _before_tensor(v1.RandomCrop(224, padding=28, pad_if_needed=True)),
    ),
    Pipeline(
        "`RandomRotation(10)`, `RandomResizedCrop`",
        lambda: _before_tensor(v1.RandomRotation(10), v1.RandomResizedCrop(224)),
    ),
    _timm("train"),
    _timm("train", color_jitter=None),
    _timm("train", auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25),
    _timm("train", auto_augment="3a", color_jitter=0.3),
    _timm("train", auto_augment="augmix-m5-w4-d2"),
    _timm("train", train_crop_mode="rkrc", color_jitter=None),
    _timm("train", train_crop_mode="rkrr", color_jitter=None),
    _timm("train", no_aug=True),
    _timm("eval"),
    _timm("eval", crop_pct=1.0),
    _timm("eval", crop_pct=0.9, crop_mode="squash"),
    _timm("eval", crop_mode="border"),
    _timm("eval", crop_border_pixels=8),
)
"""In the order of the page."""
