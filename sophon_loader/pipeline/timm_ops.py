"""timm's transforms as ops: `timm.X@1.0.31` is the class X of timm 1.0.31.

The release is a part of the name, because a transform's use of its random numbers may change with it. Ends with
different releases do not know each other's ops, and run them at the loader. Only `op_catalogue.py` loads this module,
with timm's first transform, or name; no other module imports timm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from timm.data import auto_augment, random_erasing, transforms

from sophon_loader.errors import PipelineError
from sophon_loader.pipeline.growth import GrowthOf, Size, to_size
from sophon_loader.pipeline.op import Made, OpType, attribute_parameters
from sophon_loader.pipeline.software import release_of

NOT_REGISTERED: dict[str, str] = {
    "ToNumpy": "gives an array in place of an image; with timm's prefetcher MaybePILToTensor has taken its place",
}
"""All other public transform classes of `timm.data.transforms`, with the reason why each stays at the loader."""


# --- constructors whose parameters differ from the object's attributes ----------------------------------------


def _with_interpolation(cls: type) -> Callable[[Any], Mapping[str, Any]]:
    """Return the rule for classes that take a mode's name, or "random", and store the mode, or several."""
    rule = attribute_parameters(cls)

    def describe(transform: Any) -> Mapping[str, Any]:
        modes = transform.interpolation
        name = "random" if isinstance(modes, tuple) else str(modes.value)  # whose values are timm's names
        return {**rule(transform), "interpolation": name}

    return describe


_ERASING = ("probability", "min_area", "max_area", "mode", "min_count", "max_count", "num_splits")


def _describe_erasing(erasing: Any) -> Mapping[str, Any]:
    if str(erasing.device) != "cpu":
        raise PipelineError(f"device of timm's RandomErasing must be 'cpu' to be run at an agent, got {erasing.device}")
    return {name: getattr(erasing, name) for name in (*_ERASING, "log_aspect_ratio")}


def _build_erasing(log_aspect_ratio: Any, **params: Any) -> Any:
    # It stores the logarithms of the aspects; converting them to aspects and back would change the last bit.
    erasing: Any = random_erasing.RandomErasing(**params, device="cpu")  # type: ignore[no-untyped-call]
    erasing.log_aspect_ratio = log_aspect_ratio
    return erasing


def _policy_steps(augment: Any) -> list[Any]:
    return [step for policy in augment.policy for step in policy]


def _held_steps(augment: Any) -> list[Any]:
    return list(augment.ops)


# --- bounds of image sizes -------------------------------------------------------------------------------------


def _keep_ratio(transform: Any, width: float, height: float) -> Size:
    rows, columns = transform.size
    ratios, longest = (height / rows, width / columns), transform.longest
    ratio = max(ratios) * longest + min(ratios) * (1 - longest)
    factors, aspects = [1.0], [1.0]
    if transform.random_scale_prob > 0:
        factors += [f**-0.5 if transform.random_scale_area else f for f in transform.random_scale_range]
    if transform.random_aspect_prob > 0:
        aspects += [one for a in transform.random_aspect_range for one in (a**0.5, a**-0.5)]
    most = max(factors) * max(aspects) / ratio if ratio > 0 else math.inf
    return width * most, height * most


def _random_pad(transform: Any, width: float, height: float) -> Size:
    return max(width, transform.input_size[1]), max(height, transform.input_size[0])


_GROWTHS: dict[str, GrowthOf] = {
    "CenterCropOrPad": to_size,
    "RandomCropOrPad": to_size,
    "RandomPad": _random_pad,
    "RandomResizedCropAndInterpolation": to_size,
    "ResizeKeepRatio": _keep_ratio,
}

# --- the op types ---------------------------------------------------------------------------------------------

_AUGMENT, _BASIC = auto_augment, transforms
_DRAWS: dict[str, tuple[ModuleType, tuple[str, ...]]] = {
    "AugMixAugment": (_AUGMENT, ("numpy", "python")),
    "AugmentOp": (_AUGMENT, ("python",)),
    "AutoAugment": (_AUGMENT, ("python",)),
    "CenterCropOrPad": (_BASIC, ()),
    "MaybePILToTensor": (_BASIC, ()),
    "MaybeToTensor": (_BASIC, ()),
    "RandAugment": (_AUGMENT, ("numpy", "python")),
    "RandomCropOrPad": (_BASIC, ("python",)),
    "RandomErasing": (random_erasing, ("torch", "python")),
    "RandomPad": (_BASIC, ("python",)),
    "RandomResizedCropAndInterpolation": (_BASIC, ("python",)),
    "ResizeKeepRatio": (_BASIC, ("python",)),
    "ToTensor": (_BASIC, ()),
    "TrimBorder": (_BASIC, ()),
}
"""(Module, generators it draws from), by class. Classes that another release lacks are skipped."""
_SHRINKING = ("CenterCropOrPad", "RandomCropOrPad", "RandomResizedCropAndInterpolation", "ResizeKeepRatio")
_MAKES: dict[str, Made] = {"MaybePILToTensor": "tensor", "MaybeToTensor": "tensor", "ToTensor": "tensor"}
_STEPS = {"AugMixAugment": _held_steps, "AutoAugment": _policy_steps, "RandAugment": _held_steps}


_RELEASE = release_of("timm", "timm")


def op_name(cls_name: str) -> str:
    """Return the wire's id for a class of the installed timm."""
    return f"timm.{cls_name}@{_RELEASE}"


def op_types() -> Iterator[tuple[type, OpType]]:
    """Yield each class with its op type."""
    for cls_name, (module, draws) in _DRAWS.items():
        cls = getattr(module, cls_name, None)
        if cls is not None:
            yield cls, _op_type(cls_name, cls, draws)


def _op_type(cls_name: str, cls: type, draws: tuple[str, ...]) -> OpType:
    describe = attribute_parameters(cls)
    if cls_name in ("RandomResizedCropAndInterpolation", "ResizeKeepRatio"):
        describe = _with_interpolation(cls)
    erases = cls_name == "RandomErasing"
    return OpType(
        op_name(cls_name),
        build=_build_erasing if erases else cls,
        describe=_describe_erasing if erases else describe,
        draws=draws,
        steps=_STEPS.get(cls_name),
        shrinks=cls_name in _SHRINKING,
        makes=_MAKES.get(cls_name),
        growth=_GROWTHS.get(cls_name),
        takes_deferred=True,
        pointwise=cls_name in _MAKES,
    )
