"""torchvision's transforms as ops: `v1.X` is torchvision.transforms.X, `v2.X` is torchvision.transforms.v2.X.

The table has the transforms that take one image or tensor and give one; `NOT_REGISTERED` says why each other class is
missing. The names are ids on the wire and stay for ever. Tables list the classes and their properties; the rest handles
the few constructors whose parameters differ from the object's attributes. `op_catalogue.py` does the registering.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.growth import GROWTHS
from sophon_loader.pipeline.op import Made, OpType, attribute_parameters

_MODULES: dict[str, ModuleType] = {"v1": v1, "v2": v2}

# --- the tables: classes that one of the two modules, or an older torchvision, lacks are skipped --------------------

_DETERMINISTIC = (
    "CenterCrop",
    "ConvertImageDtype",
    "Grayscale",
    "Identity",
    "LinearTransformation",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RGB",
    "Resize",
    "ToDtype",
    "ToImage",
    "ToPILImage",
    "ToPureTensor",
    "ToTensor",
)
"""Classes of either module that draw nothing."""
_DRAWING = (
    "AugMix",
    "AutoAugment",
    "ColorJitter",
    "ElasticTransform",
    "GaussianBlur",
    "GaussianNoise",
    "JPEG",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPerspective",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "ScaleJitter",
    "TrivialAugmentWide",
)
"""Classes of either module that draw from torch's generator."""
_CONTAINERS: dict[str, tuple[str, ...]] = {
    "v1.Compose": (),
    "v1.RandomApply": ("torch",),
    "v1.RandomChoice": ("python",),
    "v1.RandomOrder": ("python",),
    "v2.Compose": (),
    "v2.RandomApply": ("torch",),
    "v2.RandomChoice": ("torch",),
    "v2.RandomOrder": ("torch",),
}
"""Generators that classes which hold other transforms draw from themselves, by class."""
_SHRINKING = (
    "CenterCrop",
    "RandomCrop",
    "RandomResize",
    "RandomResizedCrop",
    "RandomShortestSize",
    "Resize",
    "ScaleJitter",
)
_IN_TORCH = ("AugMix", "ElasticTransform", "GaussianBlur", "GaussianNoise", "LinearTransformation", "RandomPerspective")
"""Classes that compute with torch even for PIL images."""
_POINTWISE = (
    "ConvertImageDtype",
    "Identity",
    "Normalize",
    "PILToTensor",
    "ToDtype",
    "ToImage",
    "ToPureTensor",
    "ToTensor",
)
"""Classes that change each value by itself; see `op.OpType`."""
_MAKES: dict[str, Made] = {
    "PILToTensor": "tensor",
    "ToImage": "tensor",
    "ToTensor": "tensor",
    "ToPILImage": "image",
}


def _converts_to_one_dtype(transform: Any) -> bool:
    # v2.ToDtype also takes a map from classes to dtypes, and a batch's class is not that of its samples.
    return isinstance(getattr(transform, "dtype", None), torch.dtype)


_ON_BATCHES: dict[str, bool | Callable[[Any], bool]] = {
    "v1.ConvertImageDtype": True,
    "v1.Normalize": True,
    "v2.ConvertImageDtype": True,
    "v2.Normalize": True,
    "v2.ToDtype": _converts_to_one_dtype,
    "v2.ToImage": True,
    "v2.ToPureTensor": True,
}

_TUPLE = "gives a tuple of images, which no encoding carries"
_BOXES = "acts on boxes or key points, of which an image dataset's sample has none"
_BATCH = "mixes the samples of a batch, so it runs after collation"
NOT_REGISTERED: dict[str, str] = {
    "v1.FiveCrop": _TUPLE,
    "v1.Lambda": "holds a function, and no code crosses the wire",
    "v1.TenCrop": _TUPLE,
    "v2.ClampBoundingBoxes": _BOXES,
    "v2.ClampKeyPoints": _BOXES,
    "v2.ConvertBoundingBoxFormat": _BOXES,
    "v2.CutMix": _BATCH,
    "v2.FiveCrop": _TUPLE,
    "v2.Lambda": "holds a function, and no code crosses the wire",
    "v2.MixUp": _BATCH,
    "v2.RandomIoUCrop": _BOXES,
    "v2.SanitizeBoundingBoxes": _BOXES,
    "v2.SanitizeKeyPoints": _BOXES,
    "v2.SetClampingMode": _BOXES,
    "v2.TenCrop": _TUPLE,
    "v2.Transform": "is the base class of the others",
    "v2.UniformTemporalSubsample": "acts on videos",
}
"""All other public transform classes of torchvision, with the reason why each stays at the loader."""


# --- constructors whose parameters differ from the object's attributes ----------------------------------------


def _describe_color_jitter_v1(transform: Any) -> Mapping[str, Any]:
    # It stores None for "leave alone" but takes 0.
    names = ("brightness", "contrast", "saturation", "hue")
    return {name: getattr(transform, name) or 0 for name in names}


def _describe_random_crop_v2(transform: Any) -> Mapping[str, Any]:
    # It stores (left, right, top, bottom) but takes (left, top, right, bottom).
    params = dict(attribute_parameters(v2.RandomCrop)(transform))
    if params["padding"] is not None:
        left, right, top, bottom = params["padding"]
        params["padding"] = [left, top, right, bottom]
    return params


def _describe_random_erasing_v2(transform: Any) -> Mapping[str, Any]:
    # It stores None for "random".
    params = attribute_parameters(v2.RandomErasing)(transform)
    return {**params, "value": "random" if params["value"] is None else params["value"]}


def _build_random_choice_v2(transforms: Any, p: Any) -> Any:
    # It stores p / sum(p); dividing once more would change the last bit.
    choice = v2.RandomChoice(transforms, p)
    choice.p = p
    return choice


def _describe_sequential(sequential: nn.Sequential) -> Mapping[str, Any]:
    return {"transforms": list(sequential)}


def _build_sequential(transforms: list[Any]) -> nn.Sequential:
    return nn.Sequential(*transforms)


_DESCRIBE: dict[str, Callable[[Any], Mapping[str, Any]]] = {
    "v1.ColorJitter": _describe_color_jitter_v1,
    "v2.RandomCrop": _describe_random_crop_v2,
    "v2.RandomErasing": _describe_random_erasing_v2,
}
_BUILD: dict[str, Callable[..., Any]] = {"v2.RandomChoice": _build_random_choice_v2}


# --- the op types ---------------------------------------------------------------------------------------------


def op_types() -> Iterator[tuple[type, OpType]]:
    """Yield each class with its op type: torchvision's transforms, and the two torch modules that pipelines hold."""
    for name, draws in _draws_by_name().items():
        prefix, cls_name = name.split(".")
        cls = getattr(_MODULES[prefix], cls_name, None)
        if cls is not None:
            yield cls, _op_type(name, cls, draws)
    rule = attribute_parameters(nn.Identity)
    yield nn.Identity, OpType("nn.Identity", nn.Identity, rule, (), takes_deferred=True, pointwise=True)
    of_steps = OpType("nn.Sequential", _build_sequential, _describe_sequential, (), _steps, takes_deferred=True)
    yield nn.Sequential, of_steps


def _draws_by_name() -> dict[str, tuple[str, ...]]:
    draws = dict(_CONTAINERS)
    for prefix in _MODULES:
        draws.update({f"{prefix}.{cls_name}": () for cls_name in _DETERMINISTIC})
        draws.update({f"{prefix}.{cls_name}": ("torch",) for cls_name in _DRAWING})
    return draws


def _op_type(name: str, cls: type, draws: tuple[str, ...]) -> OpType:
    cls_name = name.split(".")[1]
    return OpType(
        name,
        build=_BUILD.get(name, cls),
        describe=_DESCRIBE.get(name) or attribute_parameters(cls),
        draws=draws,
        steps=_steps if name in _CONTAINERS else None,
        shrinks=cls_name in _SHRINKING,
        makes=_MAKES.get(cls_name),
        on_batches=_ON_BATCHES.get(name, False),
        growth=GROWTHS.get(cls_name),
        in_torch=cls_name in _IN_TORCH,
        takes_deferred=True,
        pointwise=cls_name in _POINTWISE,
    )


def _steps(container: Any) -> list[Any]:
    steps = container if isinstance(container, nn.Sequential) else container.transforms
    if not isinstance(steps, (list, tuple, nn.Sequential, nn.ModuleList)) or not all(map(callable, steps)):
        raise PipelineError(f"steps of {type(container).__qualname__} must be a list of transforms")
    return list(steps)
