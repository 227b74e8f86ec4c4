"""Names of the encodings, without importing what implements them (the agent's broker needs no torch)."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec

from sophon_loader import native

ENTRY_POINTS = "sophon_loader.encodings"
ALWAYS = ("file", "pixels", "array", "webp")
OPTIONAL = {"roi-jpeg": native.available, "jxl": find_spec("imagecodecs") is not None}
"""What is offered only where its code is installed: the C extension, imagecodecs."""


@cache
def encoding_names() -> tuple[str, ...]:
    """Every encoding that can be offered here."""
    optional = (name for name, there in OPTIONAL.items() if there)
    return (*ALWAYS, *optional, *(entry.name for entry in entry_points(group=ENTRY_POINTS)))


def missing() -> dict[str, str]:
    """Encodings that are not offered here, and why."""
    reasons = {"roi-jpeg": native.reason, "jxl": "imagecodecs is not installed; pip install sophon_loader[jxl]"}
    return {name: reasons[name] for name, there in OPTIONAL.items() if not there}
