"""Access to what this host gives every process: cores, a clock, its parent's end, the kernel's data on a connection."""

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
"""Offsets in Linux's tcp_info: bytes acknowledged by the other end, and bytes received."""


def cores_available() -> float:
    """Return the cores that this process may use: its CPU affinity, limited by cgroup quotas (v1 and v2)."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    return min([float(affinity), *cgroup_quotas()])


def now_s() -> float:
    """Return the time of the clock for time-outs, which all processes of this host share, s."""
    return time.monotonic()


def end_with_parent() -> None:
    """End this process when the process that wanted it is killed, so that no orphan remains.

    The parent's death closes the pipe that `parent_process` watches. The process that forked this one may be a
    forkserver, which lives as long as this process, so it cannot be watched instead.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent,), name="watch-parent", daemon=True).start()


def _exit_after(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def received_nbytes(descriptor: int) -> int | None:
    """Return the bytes received by a TCP connection since it was made; None if the kernel does not report them."""
    return _tcp_info(descriptor, _RECEIVED_AT)


def acknowledged_nbytes(descriptor: int) -> int | None:
    """Return the bytes that the other end of a TCP connection has acknowledged; None if the kernel does not report
    them."""
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
