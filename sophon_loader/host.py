"""What this host is: the cores it may use, and the versions of the libraries that make pixels."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath

from PIL import features

DECODERS = frozenset({"libjpeg", "pillow"})
"""Of `software`, what roi-jpeg does not depend on: the agent cuts the region that it draws with our own code, and
only the loader decodes."""
_CGROUPS = Path("/sys/fs/cgroup")


def cores_available() -> float:
    """Cores that this process may use: its CPU affinity, cut by the cgroup quotas above it (v1 and v2)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min([float(affinity), *cgroup_quotas()])


def cgroup_quotas(proc: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> Iterator[float]:
    """Every CPU quota, in cores, set on this process's cgroup or one above it."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        v1 = "cpu" in controllers.split(",")
        if not v1 and controllers:
            continue
        group = PurePosixPath(path)
        for level in (group, *group.parents):
            quota = _quota_v1(root / "cpu" / str(level).lstrip("/")) if v1 else _quota_v2(root / str(level).lstrip("/"))
            if quota is not None:
                yield quota


def _quota_v1(group: Path) -> float | None:
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text())
        period = int((group / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 < period else None


def _quota_v2(group: Path) -> float | None:
    try:
        quota, period = map(int, (group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # also "max": no quota
        return None
    return quota / period if quota > 0 < period else None


def software() -> dict[str, str]:
    """Versions of what decides the value of a pixel, without build tags; equal maps give equal pixels."""
    torch = sys.modules.get("torch")  # who has not imported it has not changed its default either
    return {**_versions(), "default dtype": str(torch.get_default_dtype()) if torch else "torch.float32"}


def unlike(theirs: Mapping[str, str]) -> list[str]:
    """Names of the software that another host does not have as this one has it."""
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
