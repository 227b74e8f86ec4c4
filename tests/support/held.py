"""What this process holds: descriptors and threads, without those that earlier tests have left to be let go of.

A bound on a bare count fails by chance: a garbage collection closes what an earlier test's objects held, or a thread of
theirs ends, between two counts.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.agents import until

QUIET_S = 0.05
"""Time in which nothing is let go of any more."""


def settled_descriptors() -> int:
    """Descriptors that this process has open, when garbage holds none and their number has stood still for a while."""
    gc.collect()
    found, since_s = _descriptors(), time.monotonic()
    while time.monotonic() - since_s < QUIET_S:
        time.sleep(QUIET_S / 5)
        if (now := _descriptors()) != found:
            found, since_s = now, time.monotonic()
    return found


def threads_besides(before: set[threading.Thread]) -> set[threading.Thread]:
    """Threads that have started since `before` was `set(threading.enumerate())`, and have not ended."""
    return set(threading.enumerate()) - before


@contextmanager
def nothing_more_held(spare_descriptors: int = 0) -> Iterator[None]:
    """See that what runs inside leaves no thread, and no more descriptors than `spare_descriptors`, to be collected."""
    first, threads = settled_descriptors(), set(threading.enumerate())
    yield
    until(lambda: not threads_besides(threads), "its threads end")
    until(lambda: _descriptors() <= first + spare_descriptors, f"at most {first} + {spare_descriptors} descriptors")


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) - 1  # but for the listing's own
