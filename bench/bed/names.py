"""Names of beds, which carry their owner, and the clean-up that needs nothing but the name."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from bench.bed.cgroups import ControlGroup, find_cpu_hierarchy, host_group, remove_group_directory
from bench.bed.processes import command, end_processes
from bench.bed.unavailable import TestBedUnavailable

BED_NAME = re.compile(r"sophonbed-(?P<pid>\d+)-(?P<started>\d+)-\d+")
ROLES = ("agent", "loader")
DISK_GROUPS = Path("/sys/fs/cgroup/blkio")
_bed_numbers = itertools.count()


def disk_group(name: str) -> Path:
    """The control group that limits the reads of a bed's agent (`bench/bed/disks.py`), where there is one.

    Args:
        name: of the bed.
    """
    return DISK_GROUPS / f"{name}-disk"


def start_ticks(pid: int) -> int | None:
    """Start of a process, in clock ticks after boot, which tells a reused pid apart; or None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else int(fields[18])


def new_bed_name() -> str:
    """A name that tells this process, its start and its beds apart."""
    return f"sophonbed-{os.getpid()}-{start_ticks(os.getpid())}-{next(_bed_numbers)}"


def namespaces() -> set[str]:
    """Names of all network namespaces of the machine."""
    if shutil.which("ip") is None:
        return set()
    return {line.split()[0] for line in command("ip", "netns", "list").splitlines() if line.strip()}


def remove_bed(name: str, children: Sequence[subprocess.Popen[Any]] = ()) -> None:
    """End the processes of a bed and remove everything that carries its name.

    Args:
        name: of the bed.
        children: programs that this process started in it; they are asked first, and waited for.
    """
    groups: list[ControlGroup] = []
    with suppress(TestBedUnavailable):
        groups = [host_group(name, role) for role in ROLES]
    with ExitStack() as stack:  # each step is tried, even if others fail
        if disk_group(name).exists():
            stack.callback(remove_group_directory, disk_group(name))
        for folder in Path(gettempdir()).glob(f"{name}-disk-*"):
            stack.callback(shutil.rmtree, folder)
        for group in groups:
            stack.callback(group.remove)
        for namespace in sorted(namespaces() & {f"{name}-{role}" for role in ROLES}):
            stack.callback(command, "ip", "netns", "delete", namespace)
        end_processes(children, groups)


def clean_leftovers() -> list[str]:
    """Remove the beds whose owner is dead, with the processes still running in them.

    Returns:
        The names of the beds removed.
    """
    found = namespaces() | {path.name for path in Path(gettempdir()).glob("*-disk-*")}
    with suppress(TestBedUnavailable):
        for root in find_cpu_hierarchy(Path("/proc/self/mounts").read_text())[1]:
            found.update(path.name for path in root.iterdir() if path.is_dir())
    owners = {match[0]: match for match in map(BED_NAME.match, found) if match}
    dead = [name for name, m in owners.items() if start_ticks(int(m["pid"])) != int(m["started"])]
    for name in sorted(dead):
        remove_bed(name)
    return sorted(dead)


def why_no_quota() -> str | None:
    """Return the reason why this user cannot give a host a CPU quota; None if it can. Makes a group and removes it."""
    try:
        group = host_group(new_bed_name(), ROLES[0])
    except TestBedUnavailable as error:
        return str(error)
    try:
        group.create()
        return None
    except TestBedUnavailable as error:
        return str(error)
    finally:
        group.remove()  # one hierarchy may have let it be made, the other not
