"""What a program has told Pillow in this process that changes what comes of a file, and that no version says.

Not here: what an agent meets as an error of its own, after which the file goes out (`ImageFile.LOAD_TRUNCATED_IMAGES`,
larger limits), and openers of the formats that `replaced` looks at.
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
"""The other formats that Pillow itself opens, and so an agent does. It cannot open what a plugin adds to them."""
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
"""Under a lower one, Pillow warns or fails here, and does not at an agent."""


class OpenedOtherwise(PipelineError):
    """A file whose format the loader opens by other code than this process."""


def settings_of_pillow() -> str:
    """The names and values that are not the usual ones: "Image.MAX_IMAGE_PIXELS=1000000"; "" for none."""
    found = []
    for (module, name), usual in [*_USUAL.items(), *_LIMITS.items()]:
        value = getattr(sys.modules.get(f"PIL.{module}"), name, usual)
        value = getattr(value, "value", value)
        is_limit = (module, name) in _LIMITS
        if (value is not None and value < usual) if is_limit else value != usual:
            found.append(f"{module}.{name}={value}")
    return ", ".join(found)


def openers_of_pillow() -> str:
    """The formats of Pillow's that other code opens in this process: "AVIF=pillow_avif.AvifImagePlugin 1.5.2"."""
    openers: dict[str, Any] = getattr(sys.modules.get("PIL.Image"), "OPEN", {})
    modules = {name: getattr(openers[name][0], "__module__", "?") for name in sorted(_FORMATS & openers.keys())}
    return ", ".join(
        f"{name}={module} {getattr(sys.modules.get(module.partition('.')[0]), '__version__', '')}".rstrip()
        for name, module in modules.items()
        if not module.startswith("PIL.")
    )


def opened_otherwise(theirs: str) -> frozenset[str]:
    """Names of the formats that another process opens by other code than this one.

    Args:
        theirs: what `openers_of_pillow` returns there.
    """
    differ = set(theirs.split(", ")) ^ set(openers_of_pillow().split(", "))
    return frozenset(one.partition("=")[0] for one in differ if one)


def notes_on_openers() -> list[str]:
    """What a user should know of them."""
    if not (told := openers_of_pillow()):
        return []
    return [
        f"files of formats that this process opens by code other than Pillow's ({told}) come as they are, unless the "
        "agent does so too; start the agent with --ops and the module that registers the opener"
    ]
