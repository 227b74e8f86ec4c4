"""The first crop, pushed down into the file: reading of a JPEG only the part that the crop will look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sophon_loader import native
from sophon_loader.pipeline.chain import Chain, Located, Window
from sophon_loader.pipeline.op import Region
from sophon_loader.pipeline.randomness import Draw

WORTH_SHARE = 0.6
"""Cutting takes about a quarter of a full decoding (bench/jpegcrop.py): not worth it for most of a picture."""
CUT_SHARE = 0.27
"""CPU seconds of cutting the bitstream, per second of decoding the whole file (docs/native.md)."""
FIXED_SHARE = 0.05
"""CPU seconds of decoding a part of a picture apart from what falls to its share of the px, per second of decoding
the whole (docs/native.md)."""


@dataclass(frozen=True)
class PartOfFile:
    """A JPEG file of a part of a picture, and where that part lies in the whole.

    Args:
        data: the smaller file.
        window: what it holds of the whole picture.
        located: the region that it was cut out for; None at the end of the wire that did not cut.
    """

    data: bytes
    window: Window
    located: Located | None = field(default=None, compare=False)


@dataclass(frozen=True)
class NotCut:
    """A file has to be used as it is, and why."""

    reason: str


def part_of(
    data: bytes, chain: Chain, draw: Draw, *, max_share: float = 1.0, located: Located | None = None
) -> PartOfFile | NotCut:
    """The part of a JPEG file that op 1 of `chain` will read.

    Seeds the global generators: call it within `isolated()`.

    Args:
        data: the whole file.
        chain: whose op 1 it is.
        draw: decides what that will read.
        max_share: a region of a larger share of the picture is not cut out.
        located: what `chain.located` gave for this `draw`, if it was asked before.
    """
    if chain.crop is None:
        return NotCut("the pipeline does not begin with a crop")
    size = native.image_size(data)
    if size is None:
        return NotCut(native.reason or "not a JPEG file")
    located = chain.located(*size, draw, located)
    region = located.region
    if region is None or region.width * region.height > max_share * size[0] * size[1]:
        return NotCut("the region is the whole picture, or nearly so")
    cropped = native.crop(data, region.left, region.top, region.width, region.height)
    if isinstance(cropped, native.NotCropped):
        return NotCut(f"{cropped.kind}: {cropped.detail}")
    kept_size = native.image_size(cropped.data)
    if kept_size is None or len(cropped.data) >= len(data):
        return NotCut("the part is no smaller than the whole")
    kept = Region(region.left - cropped.dx, region.top - cropped.dy, *kept_size)
    return PartOfFile(cropped.data, Window(kept, *size), located)


def run_from_file(
    chain: Chain,
    data: bytes,
    stop: int,
    draw: Draw,
    *,
    keep_info: bool,
    after: Callable[[int, Any], None] | None = None,
    located: Located | None = None,
) -> Any:
    """Take a file to stage `stop`, decoding only the part that is needed where that is faster; the same value.

    Seeds the global generators: call it within `isolated()`.

    Args:
        chain: the pipeline.
        data: the whole file.
        stop: a stage, at most `len(chain)`.
        draw: decides the random numbers.
        keep_info: an op may look at the image's `info`, which must be the whole file's.
        after: see `Chain.run`.
        located: what `chain.located` gave for this `draw`, if it was asked before.

    Returns:
        The value at stage `stop`.
    """
    # Nothing to gain before the crop, and none of the file's own `info` may be lost.
    if stop > 1 and not keep_info:
        part = part_of(data, chain, draw, max_share=WORTH_SHARE, located=located)
        if isinstance(part, PartOfFile):
            return chain.run(part.data, 0, stop, draw, after=after, window=part.window, located=part.located)
    return chain.run(data, 0, stop, draw, after=after)
