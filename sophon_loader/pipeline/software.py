"""What decides the value of a pixel: versions of libraries, and settings. Equal ones at both ends give equal pixels."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path

from PIL import features

from sophon_loader.pipeline.switches import KERNELS, ON_TENSORS, USUAL, settings
from sophon_loader.pipeline.told import OPENERS, SETTINGS, openers_of_pillow, settings_of_pillow

DECODERS = frozenset({"libjpeg", "pillow"})
"""The part of `software` that roi-jpeg does not depend on: the agent cuts the region out with our own code, and only
the loader decodes."""
PIXELS = frozenset({"machine", *DECODERS, SETTINGS})
"""The part of `software` that programs depend on: their numbers are drawn, and Pillow alone runs their steps."""
_MODULES = {"pillow": "PIL", "torch": "torch", "torchvision": "torchvision"}
_VERSION = re.compile(r"""^__version__(?:: \w+)? = ['"]([^'"+]+)""", re.MULTILINE)


def software() -> dict[str, str]:
    """Versions of what decides the value of a pixel, without build tags, and settings of torch's and Pillow's; equal
    maps give equal pixels."""
    return {**_versions(), **settings(), SETTINGS: settings_of_pillow(), OPENERS: openers_of_pillow()}


def unlike(theirs: Mapping[str, str]) -> list[str]:
    """Names of the software that differs on another host, or is missing there.

    Args:
        theirs: what `software` returns there. An end that does not state a setting (an earlier release, an agent's
            broker, which does not import torch) has the usual one; its kernels are not known, and not compared here.
            Two ends that both state the openers of formats may differ in them: the agent sends those files as they are.
    """
    here = software()
    usual = {**USUAL, "default device": "cpu", SETTINGS: "", OPENERS: "", KERNELS: here.get(KERNELS, "")}
    if OPENERS in theirs:
        usual[OPENERS] = here[OPENERS] = theirs[OPENERS]
    ours = {**usual, **here}
    return sorted(name for name, value in ours.items() if theirs.get(name, usual.get(name)) != value)


def not_of_switches(differ: list[str]) -> list[str]:
    """The names of what is unlike that may change images as well, and not the numbers of tensors alone.

    Args:
        differ: what `unlike` returns.
    """
    return [name for name in differ if name not in ON_TENSORS]


def pixels_by() -> str:
    """What makes pixels in this process, as one text: equal ones make equal pixels of a program's steps."""
    made = {**_versions(), SETTINGS: settings_of_pillow()}
    return ", ".join(f"{name} {made[name]}" for name in sorted(PIXELS))


@cache
def _versions() -> Mapping[str, str]:
    releases = {package: release_of(package, module) for package, module in _MODULES.items()}
    return {"machine": platform.machine(), "libjpeg": _libjpeg(), **releases}


def _libjpeg() -> str:
    turbo = features.version_feature("libjpeg_turbo") if features.check_feature("libjpeg_turbo") else None
    return f"turbo-{turbo}" if turbo else f"{features.version_codec('jpg')}"


def release_of(package: str, module: str) -> str:
    """The version of a library, and what is odd about it: "none", or other code than the installed one.

    What is imported may lie elsewhere than what is installed (a copy on PYTHONPATH, a checkout), so the version is read
    from its own folder, without importing it. Code of a copy is told by a hash of its sources.

    Args:
        package: as it is called where it is installed.
        module: as it is imported.
    """
    spec = find_spec(module)
    try:
        installed = version(package).split("+")[0]
    except PackageNotFoundError:
        installed = "none"
    if spec is None:
        return "none"  # what cannot be imported runs nothing, even if its metadata were left behind
    if spec.origin is None:
        return installed
    folder = Path(spec.origin).parent
    stated = _stated(folder) or installed
    told = stated if installed in (stated, "none") else f"{stated}, installed as {installed}"
    return told if _is_installed(package, module, spec.origin) else f"{told}, a copy ({_hash_of(folder)})"


def _stated(folder: Path) -> str | None:
    """The version that a library's folder gives it."""
    for name in ("version.py", "_version.py"):
        try:
            found = _VERSION.search((folder / name).read_text())
        except (OSError, UnicodeDecodeError):
            continue
        if found is not None:
            return found[1]
    return None


def _is_installed(package: str, module: str, origin: str) -> bool:
    """Whether what is imported is what is installed."""
    try:
        return os.path.samefile(str(distribution(package).locate_file(f"{module}/__init__.py")), origin)
    except (PackageNotFoundError, OSError):
        return False


def _hash_of(folder: Path) -> str:
    hashed = blake2b(digest_size=6)
    for path in sorted(folder.rglob("*.py")):
        hashed.update(f"{path.relative_to(folder)}\0".encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()
