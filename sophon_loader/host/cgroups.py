"""Mount points of CPU control groups (v1 and v2), and the CPU quotas that apply to this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_CGROUP = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class CpuMounts:
    """Mount points of the hierarchies that control CPU time. Any of them may be missing, and some may be the same
    folder.

    Attributes:
        cpu: version 1, the hierarchy that takes quotas.
        cpuacct: version 1, the hierarchy that counts CPU seconds.
        unified: version 2. On a machine with both versions it may lack the cpu controller.
    """

    cpu: Path | None
    cpuacct: Path | None
    unified: tuple[Path, ...]


def cpu_mounts(mounts: str) -> CpuMounts:
    """Find the hierarchies of CPU control groups.

    Args:
        mounts: the text of /proc/self/mounts.
    """
    first: dict[str, Path] = {}
    unified: list[Path] = []
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 4:
            continue
        path, kind, options = Path(fields[1]), fields[2], fields[3].split(",")
        if kind == "cgroup":
            first.update({name: path for name in ("cpu", "cpuacct") if name in options})
        elif kind == "cgroup2":
            unified.append(path)
    return CpuMounts(first.get("cpu"), first.get("cpuacct"), tuple(unified))


def cgroup_quotas(cgroup: Path = _CGROUP, mounts: Path = _MOUNTS) -> Iterator[float]:
    """Yield every CPU quota, in cores, that is set on this process's control group or on one above it.

    In a container the path in `cgroup` is the host's, while the container sees its own group as the root of the mount.
    Groups that do not exist are skipped, so this root still counts.

    Args:
        cgroup: file that lists the process's groups; tests pass another file than the kernel's.
        mounts: file that lists the mounts; tests pass another one.
    """
    try:
        lines = cgroup.read_text().splitlines()
        mounted = cpu_mounts(mounts.read_text())
    except OSError:
        return
    for line in lines:
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in mounted.unified:
                yield from _quotas_up(root, path, 2)
        elif mounted.cpu is not None and "cpu" in controllers.split(","):
            yield from _quotas_up(mounted.cpu, path, 1)


def read_quota(group: Path, version: int) -> float | None:
    """Return the CPU quota of a control group in cores; None if it has none or cannot be read.

    Args:
        group: folder of the group in the hierarchy that takes quotas.
        version: version of the control groups, 1 or 2.
    """
    try:
        if version == 1:
            quota = int((group / "cpu.cfs_quota_us").read_text())
            period = int((group / "cpu.cfs_period_us").read_text())
        else:
            quota, period = map(int, (group / "cpu.max").read_text().split())
    except (OSError, ValueError):  # also "max": no quota
        return None
    return quota / period if quota > 0 < period else None


def _quotas_up(root: Path, path: str, version: int) -> Iterator[float]:
    """Yield the quotas of a group and of the groups above it, up to the root of the hierarchy."""
    group = PurePosixPath(path)
    for level in (group, *group.parents):
        quota = read_quota(root / str(level).lstrip("/"), version)
        if quota is not None:
            yield quota
