"""One preprocessing step: a callable, its description for the wire, and the properties of its class.

An op does not know where it runs, and does not seed random generators: `chain.py` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sophon_loader.pipeline.growth import Growth, GrowthOf

GENERATORS = ("torch", "numpy", "python")
"""Global random generators that an op may draw from."""

Made = Literal["tensor", "image"]
"""Type that an op turns its value into: a tensor (from a PIL image), or a PIL image (from a tensor)."""


@dataclass(frozen=True)
class OpSpec:
    """Description of an op.

    Args:
        name: a registered id, e.g. `v2.Resize`.
        params: plain parameters, as written by `plain.to_plain`.
    """

    name: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Op:
    """One step of a pipeline.

    Args:
        label: name in reports, e.g. `v2.Resize`.
        call: value in, value out.
        draws: generators out of `GENERATORS` that it may draw from; () for a deterministic op.
        spec: its description; None if the registry does not know it. Then it stays at the loader.
        shrinks: see `OpType`.
        makes: see `OpType`.
        on_batches: see `OpType`.
        growth: bound of the result's size; None if no larger than the image given.
        reads_info: True if it may read an image's `info` (e.g. EXIF); None, which counts as True, if not declared.
        in_torch: True if torch computes its numbers, even of a PIL image, so that they depend on torch's settings.
        takes_deferred: see `OpType`; includes all ops that it holds.
        pointwise: see `OpType`.
    """

    label: str
    call: Callable[[Any], Any]
    draws: tuple[str, ...]
    spec: OpSpec | None
    shrinks: bool = False
    makes: Made | None = None
    on_batches: bool = False
    growth: Growth | None = None
    reads_info: bool | None = False
    in_torch: bool = False
    takes_deferred: bool = False
    pointwise: bool = False


@dataclass(frozen=True)
class OpType:
    """Properties of one class of transforms.

    Args:
        name: its permanent id on the wire.
        build: called with the parameters as keywords; usually the class.
        describe: returns a transform's parameters, values that `plain.to_plain` accepts.
        draws: generators that the transform itself may draw from.
        steps: returns the transforms that a container holds; their draws count as its own.
        shrinks: True for a crop or resize, behind which the policy `resize-off` cuts.
        makes: "tensor" if it turns an image into a tensor, "image" if it turns a tensor into an image, else None.
        on_batches: True if it treats a batch of tensors [N, C, H, W] bit for bit like each of them, or a function of
            the transform that says so. An op that makes a tensor must treat uint8 pixels like images.
        growth: bound of the result's size; None if no larger than the image given. For a container it follows from
            `steps`.
        reads_info: True if the transform itself may read an image's `info`; None if not declared.
        in_torch: True if torch, not Pillow, computes its numbers for a PIL image.
        takes_deferred: True for a library's own transform, which accepts an image without pixels yet
            (`kinds.image.deferred`). The user's transforms are given plain images.
        pointwise: True if it makes a tensor [C, H, W]. Each of its values depends only on the channel and on the value
            at the same place of the PIL image or tensor; see `ends.py`.
    """

    name: str
    build: Callable[..., Any]
    describe: Callable[[Any], Mapping[str, Any]]
    draws: tuple[str, ...]
    steps: Callable[[Any], list[Any]] | None = None
    shrinks: bool = False
    makes: Made | None = None
    on_batches: bool | Callable[[Any], bool] = False
    growth: GrowthOf | None = None
    reads_info: bool | None = False
    in_torch: bool = False
    takes_deferred: bool = False
    pointwise: bool = False


def attribute_parameters(cls: type) -> Callable[[Any], Mapping[str, Any]]:
    """Return the usual rule of description: each constructor parameter is stored in an attribute of its name."""
    names = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return lambda transform: {name: getattr(transform, name) for name in names}
