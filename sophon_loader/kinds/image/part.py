"""A part of a picture's file: the rectangle that a program reads, cut out of the JPEG without decoding it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sophon_loader import native

WORTH_SHARE = 0.6
"""Cutting takes about a quarter of a full decoding (bench/jpegcrop.py): not worth it for most of a picture."""
CUT_SHARE = 0.27
"""CPU seconds of cutting the bitstream, per second of decoding the whole file (docs/native.md)."""
FIXED_SHARE = 0.05
"""CPU seconds of decoding a part of a picture apart from what falls to its share of the px, per second of decoding
the whole (docs/native.md)."""


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

    def joined(self, other: Region) -> Region:
        """The smallest rectangle that holds both."""
        left, top = min(self.left, other.left), min(self.top, other.top)
        right = max(self.left + self.width, other.left + other.width)
        bottom = max(self.top + self.height, other.top + other.height)
        return Region(left, top, right - left, bottom - top)

    def share_of(self, width: int, height: int) -> float:
        """Share of a picture's area, whose width and height are given in px."""
        return self.width * self.height / (width * height)


@dataclass(frozen=True)
class Window:
    """Where an image that was cut before decoding lies in its whole: kept rectangle and full size, px."""

    kept: Region
    full_width: int
    full_height: int


@dataclass(frozen=True)
class PartOfFile:
    """A JPEG file of a part of a picture, and where that part lies in the whole.

    Args:
        data: the smaller file.
        window: what it holds of the whole picture.
    """

    data: bytes
    window: Window


@dataclass(frozen=True)
class NotCut:
    """A file has to be used as it is, and why."""

    reason: str


def part_of(
    data: bytes, region: Region, width: int, height: int, *, keep_metadata: bool = False
) -> PartOfFile | NotCut:
    """The part of a JPEG file that holds a rectangle.

    Args:
        data: the whole file.
        region: within the picture.
        width, height: of the picture, px.
        keep_metadata: see `native.crop`.
    """
    cropped = native.crop(data, region.left, region.top, region.width, region.height, keep_metadata)
    if isinstance(cropped, native.NotCropped):
        return NotCut(f"{cropped.kind}: {cropped.detail}")
    kept_size = native.image_size(cropped.data)
    if kept_size is None or len(cropped.data) >= len(data):
        return NotCut("the part is no smaller than the whole")
    kept = Region(region.left - cropped.dx, region.top - cropped.dy, *kept_size)
    return PartOfFile(cropped.data, Window(kept, width, height))
