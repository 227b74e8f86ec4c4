"""What one preprocessing step is: something to call, and what may be said of it on the wire.

An op knows nothing of where it runs. It does not seed random generators either: `chain.py` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

GENERATORS = ("torch", "numpy", "python")
"""The global random generators an op may draw from."""


@dataclass(frozen=True)
class OpSpec:
    """An op as data: a registered name and plain parameters (see `registry.to_plain`)."""

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
        """The same rectangle in coordinates whose origin lies at (dx, dy) of these."""
        return Region(self.left - dx, self.top - dy, self.width, self.height)

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
        """The rectangle the op will read of an image of `width` x `height` px, drawing as the op draws.

        None: this op reads beyond the image (padding), or its rectangle is not known beforehand.
        """

    def finish(self, image: Any, region: Region) -> Any:
        """The op's result, `region` being given in the coordinates of `image`; draws nothing."""


@dataclass(frozen=True)
class Op:
    """One step of a pipeline.

    Args:
        label: what reports call it, e.g. `v2.Resize`.
        call: value in, value out.
        draws: which of `GENERATORS` it may draw from; () for a deterministic op.
        spec: its description; None when no registry knows it, so that it stays at the loader.
        crop: set when the op is a crop whose region can be told beforehand.
        shrinks: a crop or resize, at which the policy `resize-off` cuts.
    """

    label: str
    call: Callable[[Any], Any]
    draws: tuple[str, ...]
    spec: OpSpec | None
    crop: Crop | None = None
    shrinks: bool = False
