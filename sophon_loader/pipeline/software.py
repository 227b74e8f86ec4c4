"""The versions of the libraries that make pixels: equal ones at both ends give equal pixels."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from PIL import features

DECODERS = frozenset({"libjpeg", "pillow"})
"""The part of `software` that roi-jpeg does not depend on: the agent cuts the region out with our own code, and only
the loader decodes."""


def software() -> dict[str, str]:
    """Versions of what decides the value of a pixel, without build tags; equal maps give equal pixels."""
    torch = sys.modules.get("torch")  # a process that has not imported it has not changed its default dtype either
    return {**_versions(), "default dtype": str(torch.get_default_dtype()) if torch else "torch.float32"}


def unlike(theirs: Mapping[str, str]) -> list[str]:
    """Names of the software that differs on another host, or is missing there.

    Args:
        theirs: what `software` returns there.
    """
    return sorted(name for name, here in software().items() if theirs.get(name) != here)


@cache
def _versions() -> Mapping[str, str]:
    found = {"machine": platform.machine(), "libjpeg": _libjpeg()}
    for package in ("pillow", "torch", "torchvision"):
        try:
            found[package] = version(package).split("+")[0]
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _libjpeg() -> str:
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    return f"turbo-{turbo}" if turbo else f"{features.version_codec('jpg')}"
