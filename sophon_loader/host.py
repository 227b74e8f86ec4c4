"""What this host gives every process: its cores, and a clock."""

from __future__ import annotations

import os
import time

from sophon_loader.cgroups import cgroup_quotas


def cores_available() -> float:
    """Cores that this process may use: its CPU affinity, cut by the cgroup quotas above it (v1 and v2)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min([float(affinity), *cgroup_quotas()])


def now_s() -> float:
    """The clock of time-outs, one for all processes of this host."""
    return time.monotonic()
