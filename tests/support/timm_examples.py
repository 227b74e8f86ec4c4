"""Sample constructions of every op of timm's, as `op_examples.py` has them of torchvision's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from timm.data import auto_augment, random_erasing, transforms

from sophon_loader.pipeline.timm_ops import op_name
from tests.support.op_examples import ANY, PIL, Example, Kinds

_HPARAMS: dict[str, Any] = {"translate_const": 9, "img_mean": (124, 116, 104)}
_RANDOM = {"random_scale_prob": 0.9, "random_scale_area": True, "random_aspect_prob": 0.9}
NORMALIZED: Kinds = ("float", "norm")


def _all() -> list[Example]:
    found: list[Example] = []

    def add(cls: str, make: Callable[[], Any], takes: Kinds = PIL, gives: str | None = None, **more: Any) -> None:
        found.append(Example(op_name(cls), make, takes, gives, **more))

    add("AugMixAugment", lambda: auto_augment.augment_and_mix_transform("augmix-m5-w4-d2", dict(_HPARAMS)))
    add("AugMixAugment", lambda: auto_augment.augment_and_mix_transform("augmix-b1-mstd0.5"))
    add("AugmentOp", lambda: auto_augment.AugmentOp("Rotate", 0.7, 5, {**_HPARAMS, "interpolation": 3}))
    add("AugmentOp", lambda: auto_augment.AugmentOp("GaussianBlurRand", magnitude=9.5))
    # Not "v0", and no magnitude near 10: these ask Pillow to keep no bit of a colour, which newer ones refuse.
    for config in ("v0r-mstd0.5", "original-mstd0.5", "originalr", "3a"):
        add("AutoAugment", lambda config=config: auto_augment.auto_augment_transform(config, dict(_HPARAMS)))
    for config in ("rand-m7-mstd0.5-inc1", "rand-m9-n3-p0.8-mstd101-inc1", "rand-m7-mmax15-tweights", "rand-t3a"):
        add("RandAugment", lambda config=config: auto_augment.rand_augment_transform(config, dict(_HPARAMS)))
    add("CenterCropOrPad", lambda: transforms.CenterCropOrPad([14, 11]), ANY)
    add("CenterCropOrPad", lambda: transforms.CenterCropOrPad([30], fill=(9, 8, 7)), PIL)
    add("CenterCropOrPad", lambda: transforms.CenterCropOrPad([8, 40], padding_mode="edge"), ANY)
    add("MaybePILToTensor", transforms.MaybePILToTensor, PIL, "u8")
    add("MaybeToTensor", transforms.MaybeToTensor, PIL, "float")
    add("RandomCropOrPad", lambda: transforms.RandomCropOrPad(12), ANY)
    add("RandomCropOrPad", lambda: transforms.RandomCropOrPad([8, 40], fill=3), ANY)
    for mode, count in (("const", None), ("rand", 1), ("pixel", 3)):
        add(
            "RandomErasing",
            lambda mode=mode, count=count: random_erasing.RandomErasing(
                0.8, mode=mode, max_count=count, min_aspect=0.37, device="cpu"
            ),
            NORMALIZED,
            contiguous=True,
        )
    add("RandomPad", lambda: transforms.RandomPad((30, 25), fill=5), ANY)
    for interpolation in ("bilinear", "bicubic", "random"):
        add(
            "RandomResizedCropAndInterpolation",
            lambda interpolation=interpolation: transforms.RandomResizedCropAndInterpolation(
                (12, 16), (0.2, 1.0), interpolation=interpolation
            ),
            ANY if interpolation == "bilinear" else PIL,
        )
    add("ResizeKeepRatio", lambda: transforms.ResizeKeepRatio(14, interpolation="bicubic"), ANY)
    add("ResizeKeepRatio", lambda: transforms.ResizeKeepRatio((12, 20), 1, "random", **_RANDOM), ANY)
    add("ToTensor", transforms.ToTensor, PIL, "norm")
    add("ToTensor", lambda: transforms.ToTensor(torch.float64), PIL, "norm")
    add("TrimBorder", lambda: transforms.TrimBorder(2), ANY)
    return found


TIMM_EXAMPLES = _all()
