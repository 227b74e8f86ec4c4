"""The registry of encodings, and encoding with a fallback: any value that can travel does.

Packages outside add encodings through the entry point group `sophon_loader.encodings`.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from PIL import Image

from sophon_loader.encodings.array import ArrayEncoding
from sophon_loader.encodings.encoding import Encoded, Encoding, Payload
from sophon_loader.encodings.file import FileEncoding
from sophon_loader.encodings.jxl import JxlEncoding
from sophon_loader.encodings.names import ENTRY_POINTS, encoding_names
from sophon_loader.encodings.pixels import PixelsEncoding
from sophon_loader.encodings.roi_jpeg import RoiJpegEncoding
from sophon_loader.encodings.webp import WebpEncoding
from sophon_loader.errors import EncodingError, PipelineError
from sophon_loader.pipeline.plain import check_plain, from_plain, to_plain

PLAIN = ("pixels", "array")
"""Encodings to fall back on when the one asked for does not take the value."""


@cache
def encodings() -> dict[str, Encoding]:
    """Every encoding by name."""
    known: tuple[Encoding, ...] = (
        FileEncoding(),
        PixelsEncoding(),
        ArrayEncoding(),
        WebpEncoding(),
        RoiJpegEncoding(),
        JxlEncoding(),
    )
    own = tuple(encoding for encoding in known if encoding.name in encoding_names())
    others = tuple(entry.load()() for entry in entry_points(group=ENTRY_POINTS))
    return {encoding.name: encoding for encoding in own + others}


def encode(value: Any, name: str, *, keep_info: bool = False, allowed: Collection[str] | None = None) -> Encoded:
    """Encode `value` as `name`, or plainly if that encoding does not take it or is not allowed.

    Args:
        keep_info: carry a PIL image's `info` too (an op the registry does not know may look at it).
        allowed: names of the encodings to choose from, `file` always being one; None for all.

    Raises:
        EncodingError: no encoding takes this value, or none that is allowed.
    """
    known = encodings()
    refused: list[str] = []
    for candidate in dict.fromkeys((name, *PLAIN)):
        if candidate not in known or not known[candidate].accepts(value):
            continue
        if allowed is None or candidate in allowed or candidate == "file":
            encoded = known[candidate].encode(value)
            break
        refused.append(candidate)
    else:
        if not refused:
            raise EncodingError(f"value at the cut must be an image, a tensor or an array, got {type(value)}")
        raise EncodingError(
            f"encoding must be one that the loader allows, {list(allowed or ())}, but {' or '.join(refused)}, which "
            f"would take this {type(value).__name__}, is not allowed; allow it, or ask for another cut"
        )
    if keep_info and isinstance(value, Image.Image) and value.info:
        encoded.meta["info"] = _plain_info(value)
    return encoded


def decode(name: str, meta: dict[str, Any], payload: Payload) -> Any:
    """The value of a payload.

    Raises:
        EncodingError: unknown encoding, or meta and payload that do not fit it.
    """
    encoding = encodings().get(name)
    if encoding is None:
        raise EncodingError(f"encoding must be one of {sorted(encodings())}, got {name!r}")
    value = encoding.decode(meta, payload)
    if "info" in meta and isinstance(value, Image.Image):
        value.info = _read_info(meta["info"])
    return value


def _plain_info(image: Image.Image) -> Any:
    try:
        plain = to_plain(dict(image.info))
        check_plain(plain)
    except PipelineError as error:
        raise EncodingError(f"image info must be plain data to travel: {error}") from error
    return plain


def _read_info(plain: Any) -> dict[Any, Any]:
    try:
        info = from_plain(plain)
    except PipelineError as error:
        raise EncodingError(f"image info must be readable: {error}") from error
    if type(info) is not dict:
        raise EncodingError(f"image info must be a dict, got {type(info)}")
    return info
