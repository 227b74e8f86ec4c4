"""What one preprocessing step is: something to call, its description for the wire, and what is known of its class.

An op knows nothing of where it runs. It does not seed random generators either: `chain.py` does that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sophon_loader.pipeline.growth import Growth, GrowthOf

GENERATORS = ("torch", "numpy", "python")
"""The global random generators an op may draw from."""

Made = Literal["tensor", "image"]
"""What an op turns its value into: a tensor (out of a PIL image), or a PIL image (out of a tensor)."""


@dataclass(frozen=True)
class OpSpec:
    """An op as data.

    Args:
        name: a registered id, e.g. `v2.Resize`.
        params: plain parameters, as `plain.to_plain` writes them.
    """

    name: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Op:
    """One step of a pipeline.

    Args:
        label: what reports call it, e.g. `v2.Resize`.
        call: value in, value out.
        draws: which of `GENERATORS` it may draw from; () for a deterministic op.
        spec: its description; None if the registry does not know it, so that it stays at the loader.
        shrinks: see `OpType`.
        makes: see `OpType`.
        on_batches: see `OpType`.
        growth: how large an image it makes at most of one of a size; None for no larger than that.
        reads_info: whether it may look at an image's `info` (EXIF, say); None if nobody has said, which counts as yes.
        in_torch: whether torch makes its numbers, of a PIL image too, so that they depend on torch's settings.
        takes_deferred: see `OpType`; of all that it holds, too.
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
    """What is known of one class of transforms.

    Args:
        name: its id on the wire, for ever.
        build: the class, called with the parameters as keywords.
        describe: transform -> parameters (values may be anything that `plain.to_plain` takes).
        draws: generators that the transform itself may draw from.
        steps: for a transform that holds others: returns them; what they draw counts as drawn by it.
        shrinks: a crop or resize, after which the policy `resize-off` cuts.
        makes: "tensor" if it turns an image into a tensor, "image" if it turns a tensor into an image, else None.
        on_batches: whether it does to a batch of tensors [N, C, H, W], bit for bit, what it does to each of them (for
            an op that makes a tensor: to uint8 pixels what it does to the images); or a function of the transform.
        growth: how large an image the transform makes at most; None for no larger than what it is given. For one that
            holds others, that follows from `steps`.
        reads_info: whether the transform itself may look at an image's `info`; None if nobody has said.
        in_torch: whether torch, and not Pillow, makes the numbers of what the transform does to a PIL image.
        takes_deferred: whether it may be given an image whose pixels are not made yet (`kinds.image.deferred`): a
            library's own transform. The user's are given plain images.
        pointwise: whether it gives a tensor [C, H, W] whose values follow each from the value at the same place of
            the PIL image or tensor that it is given, and from the channel; see `ends.py`.
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
    """The usual rule of description: every constructor parameter is kept in an attribute of its name."""
    names = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return lambda transform: {name: getattr(transform, name) for name in names}
