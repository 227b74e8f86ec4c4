"""What this host gives every process: its cores, a clock, its parent's end, what the kernel knows of a connection."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
import time
from multiprocessing.process import BaseProcess

from sophon_loader.host.cgroups import cgroup_quotas

_TCP_INFO_NBYTES = 136
_ACKNOWLEDGED_AT, _RECEIVED_AT = 120, 128
"""Where in Linux's tcp_info the bytes stand that the other end has acknowledged, and those that have been received."""


def cores_available() -> float:
    """Cores that this process may use: its CPU affinity, cut by the cgroup quotas above it (v1 and v2)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min([float(affinity), *cgroup_quotas()])


def now_s() -> float:
    """The clock of time-outs, one for all processes of this host."""
    return time.monotonic()


def end_with_parent() -> None:
    """Leave no orphan when the process that wanted this one is killed. Its death closes the pipe that `parent_process`
    watches; the process that forked this one may be a forkserver, which lives as long as this one does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), name="watch-parent", daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def received_nbytes(descriptor: int) -> int | None:
    """Bytes that have come by a TCP connection since it was made; None where that cannot be told."""
    return _tcp_info(descriptor, _RECEIVED_AT)


def acknowledged_nbytes(descriptor: int) -> int | None:
    """Bytes that the other end of a TCP connection has acknowledged; None where that cannot be told."""
    return _tcp_info(descriptor, _ACKNOWLEDGED_AT)


def _tcp_info(descriptor: int, at: int) -> int | None:
    try:
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NBYTES)
    except (OSError, AttributeError):  # a Unix socket; not Linux
        return None
    finally:
        borrowed.detach()
    return int(struct.unpack_from("=Q", info, at)[0]) if len(info) >= _TCP_INFO_NBYTES else None
