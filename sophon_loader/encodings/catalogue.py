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
from pathlib import Path
from typing import Literal

from sophon_loader import native
from sophon_loader.host.installed import torch_lacking

ENTRY_POINTS = "sophon_loader.encodings"
PLAIN = ("pixels", "array")
"""How a value crosses as it is: images as the first, tensors and arrays as the second. A plan names the first for
both, and the agent takes the other where the value is no image. Where torch is not installed there is no `array`."""

INFO_CLASSES = "info-classes"
"""No encoding, though it stands among those that a loader accepts: it then reads an image's `info` with Pillow's own
classes in it. Loaders and agents from before know nothing of it."""


ANY_PART = "any-part"
"""No encoding either: the loader takes the part of a file that any of its ops reads, with the file's metadata where an
image's `info` has to go along. Loaders from before take the part that op 1 reads, if that is one of some crops; they
are sent none."""


def _lacking(package: str, module: str = "") -> str:
    """Why an encoding cannot be used that stands on another package; "" where it can. Imports nothing.

    Args:
        package: its name.
        module: the file's name of that part of it which not every version has.
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
        missing: why it cannot be used on this host; empty where it can.
    """

    name: str
    where: str
    missing: str = ""


EncodingName = Literal["file", "pixels", "array", "roi-jpeg", "webp", "htj2k", "jpegls", "jxl", "lepton", "roi-lepton"]
"""Names that editors complete and type checkers know: those of `CATALOGUE`."""
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
