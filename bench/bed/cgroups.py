"""The control group of a host: its CPU quota, its CPU seconds and its processes, in both versions of control groups."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.bed.unavailable import TestBedUnavailable
from sophon_loader.host.cgroups import cpu_mounts

QUOTA_PERIOD_US = 100_000
MIN_QUOTA_CORES = 0.01
"""The kernel refuses less than 1 ms in a period."""
LEAVE_S = 5.0
"""Seconds that ended processes may take to leave their group; they usually leave within milliseconds."""
POLL_S = 0.005
"""Version 1 has nothing to wait on for a group to become empty."""


@dataclass(frozen=True)
class ControlGroup:
    """A CPU control group, in the words of either version of the kernel's interface.

    Args:
        version: 1 or 2.
        roots: Where the hierarchies are mounted: [cpu, cpuacct] in version 1 (one entry when they
            are mounted together), one entry in version 2.
        name: Path below the roots, `bed/host`.
    """

    version: int
    roots: tuple[Path, ...]
    name: str

    @property
    def directories(self) -> tuple[Path, ...]:
        """The group in each hierarchy; the first takes the quota, the last counts the usage."""
        return tuple(root / self.name for root in self.roots)

    def create(self) -> None:
        """Make the group and what is above it.

        Raises:
            TestBedUnavailable: the kernel refuses, as in most containers.
        """
        try:
            for root, directory in zip(self.roots, self.directories, strict=True):
                if self.version == 2:
                    _enable_cpu_controller(root)
                    directory.parent.mkdir(exist_ok=True)
                    _enable_cpu_controller(directory.parent)
                directory.mkdir(parents=True)
        except OSError as error:
            raise TestBedUnavailable(
                f"a control group (version {self.version}) cannot be made: {error}",
                "run as root on the host or in a container that may write to /sys/fs/cgroup",
            ) from error

    def set_quota(self, cores: float | None) -> None:
        """Limit the group to `cores` CPU seconds per second, all together; None: no limit."""
        if cores is not None and not cores >= MIN_QUOTA_CORES:
            raise ValueError(f"cores must be at least {MIN_QUOTA_CORES} or None, got {cores}")
        quota_us = None if cores is None else round(cores * QUOTA_PERIOD_US)
        directory = self.directories[0]
        if self.version == 2:
            (directory / "cpu.max").write_text(f"{'max' if quota_us is None else quota_us} {QUOTA_PERIOD_US}")
        else:
            (directory / "cpu.cfs_period_us").write_text(str(QUOTA_PERIOD_US))
            (directory / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))

    def cpu_seconds(self) -> float:
        """CPU seconds, user and system, of all processes that are or were in the group."""
        directory = self.directories[-1]
        if self.version == 1:
            return int((directory / "cpuacct.usage").read_text()) / 1e9
        fields = dict(line.split() for line in (directory / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6

    def pids(self) -> set[int]:
        """Processes in the group now."""
        found: set[int] = set()
        for directory in self.directories:
            with suppress(FileNotFoundError):
                found.update(map(int, (directory / "cgroup.procs").read_text().split()))
        return found

    def remove(self) -> None:
        """Remove the empty group and, when it was the last in it, the bed's group above it."""
        for directory in self.directories:
            remove_group_directory(directory)
            if directory.parent.exists() and not any(path.is_dir() for path in directory.parent.iterdir()):
                remove_group_directory(directory.parent)


def _enable_cpu_controller(directory: Path) -> None:
    """Let the groups below `directory` have CPU quotas (version 2)."""
    # Stays on afterwards: another bed may be using it.
    control = directory / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def remove_group_directory(path: Path) -> None:
    """Remove a control group, waiting for processes that have ended but are not yet out of it."""
    deadline = time.monotonic() + LEAVE_S
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # A process that has been waited for may still be a moment away from leaving its group.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)


def find_cpu_hierarchy(mounts: str) -> tuple[int, tuple[Path, ...]]:
    """Find where CPU control groups are mounted.

    Args:
        mounts: the text of /proc/self/mounts.

    Returns:
        The version, and its roots as `ControlGroup` takes them.

    Raises:
        TestBedUnavailable: no hierarchy has the cpu controller.
    """
    found = cpu_mounts(mounts)
    if found.cpu is not None and found.cpuacct is not None:
        roots = (found.cpu,) if found.cpu == found.cpuacct else (found.cpu, found.cpuacct)
        return 1, roots
    for path in found.unified:
        with suppress(OSError):
            if "cpu" in (path / "cgroup.controllers").read_text().split():
                return 2, (path,)
    raise TestBedUnavailable(
        "no control group hierarchy with the cpu controller is mounted",
        "mount one, e.g. mount -t cgroup2 none /sys/fs/cgroup",
    )


def host_group(bed: str, role: str) -> ControlGroup:
    """The control group of a host, which need not exist yet.

    Args:
        bed: name of the bed.
        role: `agent` or `loader`.

    Raises:
        TestBedUnavailable: no hierarchy has the cpu controller.
    """
    version, roots = find_cpu_hierarchy(Path("/proc/self/mounts").read_text())
    return ControlGroup(version, roots, f"{bed}/{role}")
