"""Where torchvision's crops will read: known from their random numbers and the image's size alone.

Each class takes one crop transform apart as `op.Crop` asks. `locate` draws with the very function of the
transform, on a stand-in that has a size and no pixels; only the rule of CenterCrop, which has no such function,
is written out here. An image that the op would pad, or refuse, has no region: the op itself then runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torchvision.transforms import functional as v1_functional
from torchvision.transforms.v2 import functional as v2_functional

from sophon_loader.pipeline.op import Region


@dataclass(frozen=True)
class RandomResizedCropV1:
    """`torchvision.transforms.RandomResizedCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; about 18 us."""
        rule = self.transform
        top, left, rows, columns = rule.get_params(_stand_in(width, height), rule.scale, rule.ratio)
        return _inside(Region(left, top, columns, rows), width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        rule = self.transform
        return v1_functional.resized_crop(
            image,
            *(region.top, region.left, region.height, region.width),
            rule.size,
            rule.interpolation,
            antialias=rule.antialias,
        )


@dataclass(frozen=True)
class RandomResizedCropV2:
    """`torchvision.transforms.v2.RandomResizedCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; about 15 us."""
        params = self.transform.make_params([_stand_in(width, height)])
        region = Region(params["left"], params["top"], params["width"], params["height"])
        return _inside(region, width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        params = {"top": region.top, "left": region.left, "height": region.height, "width": region.width}
        return self.transform.transform(image, params)


@dataclass(frozen=True)
class RandomCropV1:
    """`torchvision.transforms.RandomCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; None where the op pads."""
        rows, columns = self.transform.size
        if self.transform.padding is not None or width < columns or height < rows:
            return None
        params = self.transform.get_params(_stand_in(width, height), self.transform.size)
        top, left, rows, columns = params
        return _inside(Region(left, top, columns, rows), width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        return v1_functional.crop(image, region.top, region.left, region.height, region.width)


@dataclass(frozen=True)
class RandomCropV2:
    """`torchvision.transforms.v2.RandomCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; None where the op pads."""
        rows, columns = self.transform.size
        if self.transform.padding is not None or width < columns or height < rows:
            return None
        params = self.transform.make_params([_stand_in(width, height)])
        region = Region(params["left"], params["top"], params["width"], params["height"])
        return _inside(region, width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        return v2_functional.crop(image, region.top, region.left, region.height, region.width)


@dataclass(frozen=True)
class CenterCropV1:
    """`torchvision.transforms.CenterCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; None where the op pads."""
        return _center(self.transform.size, width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        return v1_functional.crop(image, region.top, region.left, region.height, region.width)


@dataclass(frozen=True)
class CenterCropV2:
    """`torchvision.transforms.v2.CenterCrop` taken apart."""

    transform: Any

    def locate(self, width: int, height: int) -> Region | None:
        """See `op.Crop`; None where the op pads."""
        return _center(self.transform.size, width, height)

    def finish(self, image: Any, region: Region) -> Any:
        """See `op.Crop`."""
        return v2_functional.crop(image, region.top, region.left, region.height, region.width)


@lru_cache(maxsize=64)
def _stand_in(width: int, height: int) -> torch.Tensor:
    return torch.empty((3, height, width), device="meta")


def _center(size: Any, width: int, height: int) -> Region | None:
    rows, columns = size
    if columns > width or rows > height:
        return None
    # torchvision rounds half to even, as round() does; a floor would be off by one for half of the odd margins.
    top, left = round((height - rows) / 2.0), round((width - columns) / 2.0)
    return _inside(Region(left, top, columns, rows), width, height)


def _inside(region: Region, width: int, height: int) -> Region | None:
    """The region itself, or None unless it is a non-empty rectangle of whole px within the image."""
    whole_px = all(type(n) is int for n in (region.left, region.top, region.width, region.height))
    if not whole_px or region.width < 1 or region.height < 1:
        return None
    return region if Region(0, 0, width, height).contains(region) else None
