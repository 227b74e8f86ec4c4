"""Packages that loaders and an agent's ops need, and whether this Python finds them. Nothing is imported."""

from __future__ import annotations

from importlib.util import find_spec


def torch_lacking() -> str:
    """Names of the packages that are missing here: "torch and torchvision"; "" for none."""
    return " and ".join(name for name in ("torch", "torchvision") if find_spec(name) is None)


def torch_wanted(what: str) -> str:
    """Error text for a user of `what` where torch or torchvision is missing, with the line to type; "" for none."""
    lacking = torch_lacking()
    return f"{what} needs {lacking}, not installed here; run pip install 'sophon_loader[torch]'" if lacking else ""
