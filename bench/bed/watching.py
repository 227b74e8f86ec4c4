"""Bytes sent by the agent's interface, sampled every few milliseconds while something runs."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.bed import INTERFACE, LinkedHosts

SAMPLING_S = 0.005


@contextmanager
def watched(bed: LinkedHosts) -> Iterator[list[tuple[float, int]]]:
    """Collects (clock in seconds, bytes sent so far) until the block ends."""
    seen: list[tuple[float, int]] = []
    started, stop = threading.Event(), threading.Event()

    def watch() -> None:
        try:
            _enter(str(bed.agent_host.namespace))  # this thread alone
            while True:
                seen.append((time.perf_counter(), _sent_nbytes()))
                started.set()
                if stop.wait(SAMPLING_S):
                    break
            seen.append((time.perf_counter(), _sent_nbytes()))
        finally:
            started.set()

    thread = threading.Thread(target=watch, name="watch-link")
    thread.start()
    started.wait()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
    if len(seen) < 2:
        raise RuntimeError("the agent's interface must be readable, but watching it failed")


def _enter(namespace: str) -> None:
    """Move the calling thread into a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), "setns failed")


def _sent_nbytes() -> int:
    """Return the number of bytes sent by the link's interface in this thread's namespace."""
    with open("/proc/thread-self/net/dev") as file:
        line = next(line for line in file if line.lstrip().startswith(f"{INTERFACE}:"))
    return int(line.split(":")[1].split()[8])
