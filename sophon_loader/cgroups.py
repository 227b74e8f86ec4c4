"""The CPU quotas that control groups (v1 and v2) set on this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")


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
