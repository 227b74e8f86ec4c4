"""Packages that only ops need, and whether this Python finds them. Nothing is imported."""

from __future__ import annotations

from importlib.util import find_spec


def torch_lacking() -> str:
    """Names of the packages that ops need and that are missing here: "torch and torchvision"; "" for none."""
    return " and ".join(name for name in ("torch", "torchvision") if find_spec(name) is None)
