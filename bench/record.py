"""What every result file says besides its figures, and the data that benches run on."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

PACKAGES = ("torch", "torchvision", "pillow", "numpy", "pyzmq", "msgpack")
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def circumstances(module: str, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Commit, machine, versions and command, without a host name or an absolute path."""
    changed = "+" if _output("git", "status", "--porcelain", "--untracked-files=no") else ""
    return {
        "commit": _output("git", "rev-parse", "HEAD") + changed,
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "kernel": platform.release().split("-")[0]},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "command": shlex.join(["python", "-m", module, *map(_short, sys.argv[1:] if arguments is None else arguments)]),
    }


def write(path: Path | None, module: str, rows: Any) -> None:
    """Write rows and circumstances to a JSON file; does nothing for None."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**circumstances(module), "rows": rows}, indent=2) + "\n")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": median(values), "max": max(values)}


def in_turns(names: Sequence[str], number: int) -> list[str]:
    """The names, another one first in every round."""
    shift = number % max(1, len(names))
    return [*names[shift:], *names[:shift]]


def default_data(name: str = "imagenet") -> Path:
    """The shared pictures of that name.

    Raises:
        SystemExit: they are not there.
    """
    folder = SHARED_DATA / name
    if not folder.is_dir():
        raise SystemExit("there are no shared pictures beside this checkout; give an ImageFolder tree with --data PATH")
    return folder


def _short(argument: str) -> str:
    return os.path.join("...", *Path(argument).parts[-2:]) if argument.startswith("/") else argument


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def _cpu_model() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
