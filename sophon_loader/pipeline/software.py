"""Versions of libraries, and settings, that decide the value of a pixel. Equal ones at both ends give equal pixels."""

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
"""The part of `software` on which roi-jpeg does not depend: the agent cuts the region out with our own code, and only
the loader decodes."""
PIXELS = frozenset({"machine", *DECODERS, SETTINGS})
"""The part of `software` on which programs depend: their numbers are drawn, and Pillow alone runs their steps."""
_MODULES = {"pillow": "PIL", "torch": "torch", "torchvision": "torchvision"}
_VERSION = re.compile(r"""^__version__(?:: \w+)? = ['"]([^'"+]+)""", re.MULTILINE)


def software() -> dict[str, str]:
    """Return the versions, without build tags, and the settings of torch and Pillow that decide pixels. Equal maps give
    equal pixels."""
    return {**_versions(), **settings(), SETTINGS: settings_of_pillow(), OPENERS: openers_of_pillow()}


def unlike(theirs: Mapping[str, str]) -> list[str]:
    """Return the names of software that differs on another host, or is missing there.

    Args:
        theirs: result of `software` there. A setting that is not in it has its usual value (an earlier release, or an
            agent's broker, which does not import torch); unknown kernels are not compared. If both ends list openers of
            formats, these may differ: the agent sends such files as they are.
    """
    here = software()
    usual = {**USUAL, "default device": "cpu", SETTINGS: "", OPENERS: "", KERNELS: here.get(KERNELS, "")}
    if OPENERS in theirs:
        usual[OPENERS] = here[OPENERS] = theirs[OPENERS]
    ours = {**usual, **here}
    return sorted(name for name, value in ours.items() if theirs.get(name, usual.get(name)) != value)


def not_of_switches(differ: list[str]) -> list[str]:
    """Return the names among the differences that may change images too, and not only the numbers of tensors.

    Args:
        differ: result of `unlike`.
    """
    return [name for name in differ if name not in ON_TENSORS]


def pixels_by() -> str:
    """Return the software that makes pixels in this process, as one text. Equal texts give equal pixels of a program's
    steps."""
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
    """Return a library's version, and what is unusual about it; "none" if it cannot be imported.

    The imported code may lie elsewhere than the installed one (a copy on PYTHONPATH, a checkout). So the version is
    read from its own folder, without importing it. A copy's code is identified by a hash of its sources.

    Args:
        package: name of the installed distribution.
        module: name of the imported module.
    """
    spec = find_spec(module)
    try:
        installed = version(package).split("+")[0]
    except PackageNotFoundError:
        installed = "none"
    if spec is None:
        return "none"  # a library that cannot be imported runs nothing, even if its metadata was left behind
    if spec.origin is None:
        return installed
    folder = Path(spec.origin).parent
    stated = _stated(folder) or installed
    told = stated if installed in (stated, "none") else f"{stated}, installed as {installed}"
    return told if _is_installed(package, module, spec.origin) else f"{told}, a copy ({_hash_of(folder)})"


def _stated(folder: Path) -> str | None:
    """Return the version in a library's folder; None if it has none."""
    for name in ("version.py", "_version.py"):
        try:
            found = _VERSION.search((folder / name).read_text())
        except (OSError, UnicodeDecodeError):
            continue
        if found is not None:
            return found[1]
    return None


def _is_installed(package: str, module: str, origin: str) -> bool:
    """True if the imported code is the installed one."""
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
