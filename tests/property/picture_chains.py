"""Hypothesis strategies: what people do to pictures before they are tensors, with odd sizes and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from timm.data import create_transform
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from tests.support.op_examples import EXAMPLES
from tests.support.timm_examples import TIMM_EXAMPLES

Choose = Callable[..., Any]
"""One of its arguments."""
_KEEPING = [one for one in (*EXAMPLES, *TIMM_EXAMPLES) if "pil" in one.takes and one.gives is None and one.size is None]
_MEAN_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def _crops(module: Any, choose: Choose) -> Any:
    """Something that crops, resizes, turns or bends."""
    size = choose(8, 13, (9,), [12, 17], (31, 10), 40, 64, (1, 90), 150)
    sampling = {"interpolation": choose(*InterpolationMode)}
    bending = {"interpolation": choose(*InterpolationMode, *[InterpolationMode.BILINEAR] * 9)}
    made: Callable[[], Any] = choose(
        lambda: module.Resize(size, **sampling),
        lambda: module.Resize(choose(7, 20, 33), **sampling, max_size=choose(None, 41, 60)),
        lambda: module.CenterCrop(size),
        lambda: module.RandomCrop(size, choose(None, 3, (2, 5), (1, 2, 3, 4)), choose(False, True), choose(0, 7)),
        lambda: module.RandomCrop(
            size, 4, pad_if_needed=True, padding_mode=choose("edge", "reflect", "symmetric", "constant")
        ),
        lambda: module.RandomResizedCrop(size, choose((0.08, 1), (0.3, 0.7), (1e-4, 1e-3)), **sampling),
        lambda: module.RandomHorizontalFlip(choose(0.5, 1)),
        lambda: module.RandomVerticalFlip(choose(0.5, 1)),
        lambda: module.RandomRotation(
            choose(20, (90, 90), (-180, 180)), **bending, expand=choose(False, True), fill=choose(0, (1, 2, 3))
        ),
        lambda: module.RandomAffine(choose(0, 30), (0.1, 0.3), (0.5, 1.5), choose(None, 20), **bending),
        lambda: module.RandomPerspective(0.6, p=1, **bending, fill=choose(0, 200)),
        lambda: module.Pad(choose(1, (2, 3)), padding_mode=choose("edge", "constant", "reflect")),
    )
    return made()


def _colours(module: Any, choose: Choose) -> Any:
    """Something that changes what px look like."""
    made: Callable[[], Any] = choose(
        lambda: module.ColorJitter(0.4, 0.4, choose(0, 0.4), choose(0, 0.1)),
        lambda: module.RandAugment(choose(1, 2, 4), choose(3, 9, 28), interpolation=choose(*InterpolationMode)),
        lambda: module.AutoAugment(choose(*v1.AutoAugmentPolicy)),
        lambda: module.TrivialAugmentWide(),
        lambda: module.AugMix(mixture_width=2),
        lambda: module.GaussianBlur(choose(3, (5, 7)), (0.1, 2)),
        lambda: module.Grayscale(choose(1, 3)),
        lambda: module.RandomGrayscale(0.5),
        lambda: module.RandomAutocontrast(1),
        lambda: module.RandomEqualize(1),
        lambda: module.RandomPosterize(choose(1, 4), 1),
        lambda: module.RandomSolarize(choose(0, 128, 255), 1),
        lambda: module.RandomInvert(1),
        lambda: module.RandomAdjustSharpness(choose(0, 0.5, 3), 1),
        lambda: module.ElasticTransform(choose(5.0, 80.0), 1.0),
    )
    return made()


def _containers(module: Any, choose: Choose) -> Any:
    inner = [choose(_crops, _colours)(module, choose) for _ in range(choose(1, 2))]
    name = choose("RandomApply", "RandomChoice", "RandomOrder")
    return getattr(module, name)(inner)


def _registered(module: Any, choose: Choose) -> Any:
    return choose(*_KEEPING).make()


def _stack(images: Any) -> Any:
    return torch.stack([v1.functional.pil_to_tensor(image) for image in images])


def _ends(module: Any, choose: Choose) -> list[Any]:
    """What makes a tensor, or several, or leaves the image."""
    made: Callable[[], list[Any]] = choose(
        lambda: [],
        lambda: [module.ToTensor() if module is v1 else v2.ToImage()],
        lambda: [module.PILToTensor()],
        lambda: [v1.ToTensor(), module.Normalize(*_MEAN_STD), module.RandomErasing(1, value=choose(0, "random"))],
        lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*_MEAN_STD)],
        lambda: [module.FiveCrop(choose(7, (5, 8))), v1.Lambda(_stack)],
        lambda: [module.TenCrop(choose(7, (5, 8)), choose(False, True))],
    )
    return made()


def _of_timm(choose: Choose) -> list[Any]:
    """A preset of timm's."""
    training = choose(True, True, False)
    more: dict[str, Any] = {
        "interpolation": choose("bilinear", "bicubic", "random" if training else "lanczos"),
        "use_prefetcher": choose(False, True),
    }
    if training:
        augment = choose(None, "rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.8", "augmix-m5-w2", "original-mstd0.5", "3a")
        more |= {"auto_augment": augment, "re_prob": choose(0.0, 1.0), "color_jitter": choose(None, 0.4)}
        more |= {"train_crop_mode": choose("rrc", "rkrc", "rkrr"), "vflip": choose(0.0, 0.5)}
    else:
        more |= {"crop_mode": choose("center", "squash", "border"), "crop_pct": choose(None, 0.8, 1.0)}
    made: Any = create_transform(choose(9, 24, (3, 17, 30)), is_training=training, **more)
    return list(made.transforms)


@st.composite
def picture_transforms(draw: st.DrawFn) -> list[Any]:
    """Transforms for an RGB image of any size, in order; some fail on some sizes."""

    def choose(*values: Any) -> Any:
        return values[draw(st.integers(0, len(values) - 1))]

    module = choose(v1, v2)
    if choose(0, 1, 2, 3, 4, 5) == 5:
        return _of_timm(choose)
    kinds = [
        choose(_crops, _crops, _crops, _colours, _colours, _registered, _containers) for _ in range(choose(1, 2, 4))
    ]
    return [*(make(module, choose) for make in kinds), *_ends(module, choose)]
