"""An environment with what a storage agent is installed with, and no more: no torch, no extra."""

from __future__ import annotations

import re
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.agents import ROOT


def agent_environment(folder: Path) -> Path:
    """Python of a new environment that has this package and its base dependencies; pip is not run.

    Args:
        folder: of the environment; its packages are links to those of the environment that runs the tests.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in _base():
        for entry in {path.parts[0] for path in distribution(name).files or []} - {"..", "__pycache__"}:
            (packages / entry).symlink_to(Path(str(distribution(name).locate_file(entry))))
    for name in ("sophon_loader", "storage_agent"):
        (packages / name).symlink_to(ROOT / name)
    return folder / "bin" / "python"


def _base() -> set[str]:
    """Names of the distributions that pip installs with the package when no extra is named."""
    listed = re.search(r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL | re.MULTILINE)
    assert listed is not None
    wanted, found = [Requirement(one) for one in re.findall(r'^ +"(.+?)"', listed[1], re.MULTILINE)], set[str]()
    while wanted:
        one = wanted.pop()
        if one.name not in found and (one.marker is None or one.marker.evaluate({"extra": ""})):
            found.add(one.name)
            wanted += map(Requirement, distribution(one.name).requires or [])
    return found
