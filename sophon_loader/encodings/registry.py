"""The encodings by name, and encoding with a fallback: any value that can travel does."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any

from PIL import Image

from sophon_loader.encodings.catalogue import PLAIN, entries
from sophon_loader.encodings.encoding import Encoded, Encoding, Payload
from sophon_loader.encodings.estimate import Fitted, UsedAt
from sophon_loader.encodings.info import MoreThanPixels, info_of, read_info
from sophon_loader.errors import EncodingError

_OF_AN_IMAGE = {*vars(Image.new("L", (1, 1))), "encoderconfig", "encoderinfo"}
"""Attributes that every PIL image has, also after saving. An op may have added others, for another op to read."""


@cache
def encodings() -> dict[str, Encoding]:
    """Return every encoding of the catalogue, by name and in its order."""
    return {name: entry.load()() for name, entry in entries().items()}


@cache
def fitted() -> dict[str, Fitted]:
    """Return the estimates of the encodings whose size must be found by trials, by name."""
    stated = {name: getattr(encoding, "estimate", None) for name, encoding in encodings().items()}
    return {name: estimate for name, estimate in stated.items() if isinstance(estimate, Fitted)}


def used_at(name: str) -> UsedAt | None:
    """Return the stage at which an encoding may be used; None if it states none, or is not known here."""
    return getattr(encodings().get(name), "used_at", None)


def encode(value: Any, name: str, *, keep_info: bool = False, allowed: Collection[str] | None = None) -> Encoded:
    """Encode `value` as `name`, or plainly if that encoding does not take it or is not allowed.

    Args:
        value: the value at the cut, or the file's bytes.
        name: the encoding asked for; it may be unknown here.
        keep_info: carry a PIL image's `info` too (an op may look at it).
        allowed: names of the encodings to choose from; `file` is always allowed. None for all.

    Raises:
        EncodingError: no allowed encoding takes this value, or the value would not come back as it is.
    """
    if isinstance(value, Image.Image) and (more := _attributes_of_ops(value)):
        raise MoreThanPixels(f"image at the cut must have no attributes but PIL's own, got {more}")
    known = encodings()
    refused: list[str] = []
    for candidate in dict.fromkeys((name, *PLAIN)):
        if candidate not in known or not known[candidate].accepts(value):
            continue
        if allowed is None or candidate in allowed or candidate == "file":
            encoded = known[candidate].encode(value)
            if keep_info and isinstance(value, Image.Image) and value.info:
                encoded.meta["info"] = info_of(value, allowed)
            return encoded
        refused.append(candidate)
    if not refused:
        raise EncodingError(
            f"value at the cut must be an image, a tensor or an array, got {type(value)}; have the op return one tensor"
        )
    raise EncodingError(
        f"encoding must be one that the loader allows, {list(allowed or ())}, but {' or '.join(refused)}, which "
        f"would take this {type(value).__name__}, is not allowed; allow it, or ask for another cut"
    )


def decode(name: str, meta: dict[str, Any], payload: Payload) -> Any:
    """Return the value of a payload.

    Args:
        name: its encoding.
        meta: from the header.
        payload: as it arrived.

    Raises:
        EncodingError: the encoding is unknown, or meta and payload do not fit it.
    """
    encoding = encodings().get(name)
    if encoding is None:
        raise EncodingError(f"encoding must be one of {sorted(encodings())}, got {name!r}")
    value = encoding.decode(meta, payload)
    if "info" in meta and isinstance(value, Image.Image):
        value.info = read_info(meta["info"])
    return value


def _attributes_of_ops(image: Image.Image) -> list[str]:
    more = vars(image).keys() - _OF_AN_IMAGE
    return sorted(name for name in more if not name.startswith("_")) if more else []
