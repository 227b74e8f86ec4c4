"""Finds settings and openers of Pillow that a program has changed in this process and that no version shows.

Not included: settings whose effect an agent meets as an error, after which it sends the file
(`ImageFile.LOAD_TRUNCATED_IMAGES`, larger limits), and openers of the formats that `replaced` checks.
"""

from __future__ import annotations

import sys
from typing import Any

from sophon_loader.errors import PipelineError

SETTINGS, OPENERS = "settings of Pillow", "openers of Pillow"
_FORMATS = frozenset((
    "AVIF", "BLP", "BUFR", "CUR", "DCX", "DDS", "DIB", "EPS", "FITS", "FLI", "FPX", "FTEX", "GBR", "GRIB", "HDF5",
    "ICNS", "ICO", "IM", "IMT", "IPTC", "JPEG2000", "MCIDAS", "MIC", "MPEG", "MSP", "PCD", "PCX", "PIXAR", "PSD",
    "QOI", "SGI", "SPIDER", "SUN", "TGA", "WMF", "XBM", "XPM", "XVTHUMB",
))  # fmt: skip
"""Other formats that Pillow, and therefore an agent, opens by itself. An agent cannot open formats added by plugins."""
_USUAL: dict[tuple[str, str], Any] = {
    ("GifImagePlugin", "LOADING_STRATEGY"): 0,
    ("TiffImagePlugin", "READ_LIBTIFF"): False,
    ("AvifImagePlugin", "DECODE_CODEC_CHOICE"): "auto",
}
_LIMITS = {
    ("Image", "MAX_IMAGE_PIXELS"): 89_478_485,
    ("PngImagePlugin", "MAX_TEXT_CHUNK"): 1 << 20,
    ("PngImagePlugin", "MAX_TEXT_MEMORY"): 1 << 26,
}
"""Pillow's usual limits. Under lower ones, Pillow warns or fails here, but not at an agent."""


class OpenedOtherwise(PipelineError):
    """A file whose format the loader opens by other code than this process."""


def settings_of_pillow() -> str:
    """Return the unusual settings with their values, "Image.MAX_IMAGE_PIXELS=1000000"; "" if there is none."""
    found = []
    for (module, name), usual in [*_USUAL.items(), *_LIMITS.items()]:
        value = getattr(sys.modules.get(f"PIL.{module}"), name, usual)
        value = getattr(value, "value", value)
        is_limit = (module, name) in _LIMITS
        if (value is not None and value < usual) if is_limit else value != usual:
            found.append(f"{module}.{name}={value}")
    return ", ".join(found)


def openers_of_pillow() -> str:
    """Return Pillow's formats that other code opens in this process: "AVIF=pillow_avif.AvifImagePlugin 1.5.2"."""
    openers: dict[str, Any] = getattr(sys.modules.get("PIL.Image"), "OPEN", {})
    modules = {name: getattr(openers[name][0], "__module__", "?") for name in sorted(_FORMATS & openers.keys())}
    return ", ".join(
        f"{name}={module} {getattr(sys.modules.get(module.partition('.')[0]), '__version__', '')}".rstrip()
        for name, module in modules.items()
        if not module.startswith("PIL.")
    )


def opened_otherwise(theirs: str) -> frozenset[str]:
    """Return the names of formats that another process opens by other code than this one.

    Args:
        theirs: result of `openers_of_pillow` there.
    """
    differ = set(theirs.split(", ")) ^ set(openers_of_pillow().split(", "))
    return frozenset(one.partition("=")[0] for one in differ if one)


def notes_on_openers() -> list[str]:
    """Return notes for the user on formats that other code opens."""
    if not (told := openers_of_pillow()):
        return []
    return [
        f"files of formats that this process opens by code other than Pillow's ({told}) come as they are, unless the "
        "agent does so too; start the agent with --ops and the module that registers the opener"
    ]
