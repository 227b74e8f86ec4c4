"""Lists the encodings, one line each, without importing their implementations.

The agent's broker and command line ask for names and load neither torch nor numpy. Packages outside add encodings
through the entry point group `sophon_loader.encodings`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from sophon_loader import native
from sophon_loader.host.installed import torch_lacking

ENTRY_POINTS = "sophon_loader.encodings"
PLAIN = ("pixels", "array")
"""Encodings of a value as it is: the first for images, the second for tensors and arrays. A plan names the first for
both, and the agent takes the second if the value is not an image. Where torch is not installed there is no `array`."""

INFO_CLASSES = "info-classes"
"""Not an encoding, but listed among those that a loader accepts. Such a loader reads Pillow's own classes in an image's
`info`. Older loaders and agents do not know it."""


ANY_PART = "any-part"
"""Not an encoding either. Such a loader takes the part of a file that any of its ops reads, with the file's metadata if
an image's `info` has to be sent. Older loaders take only the part that op 1 reads, if op 1 is one of some crops; agents
send them no other parts."""


def _lacking(package: str, module: str = "") -> str:
    """Return the reason why an encoding's package cannot be used; "" if it can. Imports nothing.

    Args:
        package: the name of the package that the encoding needs.
        module: file name of a module in it that not every version has.
    """
    spec = find_spec(package)
    if spec is None:
        return f"{package} is not installed; pip install sophon_loader[codecs]"
    folders = spec.submodule_search_locations or ()
    if module and not any(any(Path(folder).glob(f"{module}.*")) for folder in folders):
        return f"{package} must be a version with {module}; pip install --upgrade sophon_loader[codecs]"
    return ""


_NO_TENSORS = f"not installed: {torch_lacking()}; no op runs at this agent" if torch_lacking() else ""
_NO_LEPTON = native.reason or _lacking("lepton_jpeg_python")  # which sizes JPEG files have is read by our own code


@dataclass(frozen=True)
class Line:
    """An encoding of this package.

    Args:
        name: the name of its byte format, for ever.
        where: its class, as `module:Class`.
        missing: reason why it cannot be used on this host; empty if it can.
    """

    name: str
    where: str
    missing: str = ""


EncodingName = Literal["file", "pixels", "array", "roi-jpeg", "webp", "htj2k", "jpegls", "jxl", "lepton", "roi-lepton"]
"""Names in `CATALOGUE`, for editors and type checkers."""
CATALOGUE = (
    Line("file", "sophon_loader.encodings.file:FileEncoding"),
    Line("pixels", "sophon_loader.encodings.pixels:PixelsEncoding"),
    Line("array", "sophon_loader.encodings.array:ArrayEncoding", missing=_NO_TENSORS),
    Line("roi-jpeg", "sophon_loader.encodings.roi_jpeg:RoiJpegEncoding", missing=native.reason),
    Line("webp", "sophon_loader.encodings.webp:WebpEncoding"),
    Line("htj2k", "sophon_loader.encodings.htj2k:Htj2kEncoding", missing=_lacking("imagecodecs", "_htj2k")),
    Line("jpegls", "sophon_loader.encodings.jpegls:JpeglsEncoding", missing=_lacking("imagecodecs", "_jpegls")),
    Line("jxl", "sophon_loader.encodings.jxl:JxlEncoding", missing=_lacking("imagecodecs", "_jpegxl")),
    Line("lepton", "sophon_loader.encodings.lepton:LeptonEncoding", missing=_NO_LEPTON),
    Line("roi-lepton", "sophon_loader.encodings.roi_lepton:RoiLeptonEncoding", missing=_NO_LEPTON),
)
"""Encodings of this package, in the order of the columns in a table of choices."""


_unused: set[str] = set()


def leave_out(name: str) -> None:
    """Have this process load an encoding no more, whether or not it is installed.

    Args:
        name: of the encoding.
    """
    _unused.add(name)
    entries.cache_clear()


@cache
def entries() -> dict[str, EntryPoint]:
    """Return the entry point of each encoding that can be used on this host, by name."""
    own = [
        EntryPoint(line.name, line.where, ENTRY_POINTS)
        for line in CATALOGUE
        if not (line.missing or line.name in _unused)
    ]
    return {entry.name: entry for entry in (*own, *entry_points(group=ENTRY_POINTS))}


def encoding_names() -> tuple[str, ...]:
    """Return the names of all encodings that can be used on this host."""
    return tuple(entries())


def missing() -> dict[str, str]:
    """Return name -> reason, for encodings that cannot be used on this host."""
    return {line.name: line.missing for line in CATALOGUE if line.missing}


def usable(allowed: Collection[str], offered: Sequence[str]) -> tuple[str, ...]:
    """Return the names that may cross: those that the user allows and the agent offers, and always `file`.

    Args:
        allowed: names that the user allows.
        offered: names that the agent offers, in its order.
    """
    return ("file", *(name for name in offered if name in allowed and name != "file"))
