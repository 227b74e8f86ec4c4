"""What one preprocessing step is: something to call, its description for the wire, and what is known of its class.

An op knows nothing of where it runs. It does not seed random generators either: `chain.py` does that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

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
class Region:
    """A rectangle of an image, in px of that image's own coordinates."""

    left: int
    top: int
    width: int
    height: int

    def shifted(self, dx: int, dy: int) -> Region:
        """The same rectangle in other coordinates.

        Args:
            dx, dy: where their origin lies in the coordinates of this rectangle, px.
        """
        return replace(self, left=self.left - dx, top=self.top - dy)

    def contains(self, other: Region) -> bool:
        """Whether `other` lies wholly inside."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and self.left + self.width >= other.left + other.width
            and self.top + self.height >= other.top + other.height
        )


class Crop(Protocol):
    """A crop op taken apart: where it will read, and what it then does with that rectangle.

    For an image of size (w, h): `op(image) == finish(image, locate(w, h))` under the same generators.
    """

    def locate(self, width: int, height: int) -> Region | None:
        """The rectangle that the op will read; draws random numbers as the op does.

        Args:
            width, height: of the image, px.

        Returns:
            None if the op reads beyond the image (padding), or if the rectangle is not known beforehand.
        """

    def finish(self, image: Any, region: Region) -> Any:
        """The op's result; draws nothing.

        Args:
            image: a PIL image or tensor that holds the region.
            region: what the op reads, in px of `image`.
        """


@dataclass(frozen=True)
class Op:
    """One step of a pipeline.

    Args:
        label: what reports call it, e.g. `v2.Resize`.
        call: value in, value out.
        draws: which of `GENERATORS` it may draw from; () for a deterministic op.
        spec: its description; None if the registry does not know it, so that it stays at the loader.
        crop: set if the op is a crop whose region is known beforehand.
        shrinks: see `OpType`.
        makes: see `OpType`.
        on_batches: see `OpType`.
        growth: how large an image it makes at most of one of a size; None for no larger than that.
        reads_info: whether it may look at an image's `info` (EXIF, say); None if nobody has said, which counts as yes.
        in_torch: whether torch makes its numbers, of a PIL image too, so that they depend on torch's settings.
    """

    label: str
    call: Callable[[Any], Any]
    draws: tuple[str, ...]
    spec: OpSpec | None
    crop: Crop | None = None
    shrinks: bool = False
    makes: Made | None = None
    on_batches: bool = False
    growth: Growth | None = None
    reads_info: bool | None = False
    in_torch: bool = False


@dataclass(frozen=True)
class OpType:
    """What is known of one class of transforms.

    Args:
        name: its id on the wire, for ever.
        build: the class, called with the parameters as keywords.
        describe: transform -> parameters (values may be anything that `plain.to_plain` takes).
        draws: generators that the transform itself may draw from.
        steps: for a transform that holds others: returns them; what they draw counts as drawn by it.
        crop: builds the op's `Crop` from the transform; None for ops without a known region.
        shrinks: a crop or resize, after which the policy `resize-off` cuts.
        makes: "tensor" if it turns an image into a tensor, "image" if it turns a tensor into an image, else None.
        on_batches: whether it does to a batch of tensors [N, C, H, W], bit for bit, what it does to each of them (for
            an op that makes a tensor: to uint8 pixels what it does to the images); or a function of the transform.
        growth: how large an image the transform makes at most; None for no larger than what it is given. For one that
            holds others, that follows from `steps`.
        reads_info: whether the transform itself may look at an image's `info`; None if nobody has said.
        in_torch: whether torch, and not Pillow, makes the numbers of what the transform does to a PIL image.
    """

    name: str
    build: Callable[..., Any]
    describe: Callable[[Any], Mapping[str, Any]]
    draws: tuple[str, ...]
    steps: Callable[[Any], list[Any]] | None = None
    crop: Callable[[Any], Crop | None] | None = None
    shrinks: bool = False
    makes: Made | None = None
    on_batches: bool | Callable[[Any], bool] = False
    growth: GrowthOf | None = None
    reads_info: bool | None = False
    in_torch: bool = False


def attribute_parameters(cls: type) -> Callable[[Any], Mapping[str, Any]]:
    """The usual rule of description: every constructor parameter is kept in an attribute of its name."""
    names = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    return lambda transform: {name: getattr(transform, name) for name in names}
