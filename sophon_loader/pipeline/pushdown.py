"""The first crop, pushed down into the file: reading of a JPEG only the part that the crop will look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sophon_loader import native
from sophon_loader.pipeline.chain import Chain, Window
from sophon_loader.pipeline.op import Region
from sophon_loader.pipeline.randomness import Draw

WORTH_SHARE = 0.6
"""Cutting takes about a quarter of a full decoding (bench/jpegcrop.py): not worth it for most of a picture."""


@dataclass(frozen=True)
class PartOfFile:
    """A JPEG file of a part of a picture, and where that part lies in the whole."""

    data: bytes
    window: Window


def part_of(data: bytes, chain: Chain, draw: Draw, *, most_share: float = 1.0) -> PartOfFile | str:
    """The part of a JPEG file that op 1 of `chain` will read, or why the file has to be used as it is.

    Seeds the global generators: call it within `isolated()`.

    Args:
        most_share: a region of a larger share of the picture is not cut out.
    """
    if len(chain) < 2 or chain.ops[1].crop is None:
        return "the pipeline does not begin with a crop"
    size = native.image_size(data) if native.available else None
    if size is None:
        return native.reason or "not a JPEG file"
    region = chain.region(*size, draw)
    if region is None or region.width * region.height > most_share * size[0] * size[1]:
        return "the region is the whole picture, or nearly so"
    cropped = native.crop(data, region.left, region.top, region.width, region.height)
    if isinstance(cropped, native.NotCropped):
        return f"{cropped.kind}: {cropped.detail}"
    kept_size = native.image_size(cropped.data)
    if kept_size is None or len(cropped.data) >= len(data):
        return "the part is no smaller than the whole"
    kept = Region(region.left - cropped.dx, region.top - cropped.dy, *kept_size)
    return PartOfFile(cropped.data, Window(kept, *size))


def run_from_file(
    chain: Chain,
    data: bytes,
    stop: int,
    draw: Draw,
    *,
    keep_info: bool,
    after: Callable[[int, Any], None] | None = None,
) -> Any:
    """Take a file to stage `stop`, decoding only the part that is needed where that is faster; the same value.

    Args:
        keep_info: an op that is not registered will see the image, so its `info` must be the whole file's.
        after: see `Chain.run`.
    """
    part = part_of(data, chain, draw, most_share=WORTH_SHARE) if stop > 1 and not keep_info else ""
    if isinstance(part, str):
        return chain.run(data, 0, stop, draw, after=after)
    return chain.run(part.data, 0, stop, draw, after=after, window=part.window)
