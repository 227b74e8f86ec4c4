"""Which encodings there are: one line each, without importing what implements them.

The agent's broker and command line ask for names and load neither torch nor numpy. Packages outside add encodings
through the entry point group `sophon_loader.encodings`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from sophon_loader import native

ENTRY_POINTS = "sophon_loader.encodings"
PLAIN = ("pixels", "array")
"""How a value crosses as it is: images as the first, tensors and arrays as the second. A plan names the first for
both, and the agent takes the other where the value is no image."""
_NO_IMAGECODECS = "" if find_spec("imagecodecs") else "imagecodecs is not installed; pip install sophon_loader[jxl]"


@dataclass(frozen=True)
class Line:
    """An encoding of this package.

    Args:
        name: the name of its byte format, for ever.
        where: its class, as `module:Class`.
        missing: why it cannot be used on this host; empty where it can.
    """

    name: str
    where: str
    missing: str = ""


CATALOGUE = (
    Line("file", "sophon_loader.encodings.file:FileEncoding"),
    Line("pixels", "sophon_loader.encodings.pixels:PixelsEncoding"),
    Line("array", "sophon_loader.encodings.array:ArrayEncoding"),
    Line("roi-jpeg", "sophon_loader.encodings.roi_jpeg:RoiJpegEncoding", missing=native.reason),
    Line("webp", "sophon_loader.encodings.webp:WebpEncoding"),
    Line("jxl", "sophon_loader.encodings.jxl:JxlEncoding", missing=_NO_IMAGECODECS),
)
"""In the order in which a table lists their choices."""


@cache
def entries() -> dict[str, EntryPoint]:
    """What loads the class of each encoding that can be used on this host, by name."""
    own = [EntryPoint(line.name, line.where, ENTRY_POINTS) for line in CATALOGUE if not line.missing]
    return {entry.name: entry for entry in (*own, *entry_points(group=ENTRY_POINTS))}


def encoding_names() -> tuple[str, ...]:
    """Every encoding that can be used on this host."""
    return tuple(entries())


def missing() -> dict[str, str]:
    """Encodings that cannot be used on this host, and why."""
    return {line.name: line.missing for line in CATALOGUE if line.missing}


def usable(allowed: Collection[str], offered: Sequence[str]) -> tuple[str, ...]:
    """The one set of names that may cross: what the user allows and the agent offers, and `file` in any case.

    Args:
        allowed: names that the user allows.
        offered: names that the agent offers, in its order.
    """
    return ("file", *(name for name in offered if name in allowed and name != "file"))
