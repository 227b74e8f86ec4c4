"""What batches take of a process, counted while they are made: one may take longer than a window."""

from __future__ import annotations

import time

from torch.utils.data import get_worker_info

from sophon_loader.client.session import Session
from sophon_loader.fleet.fleet import Fleet
from sophon_loader.measures.counters import Row

EVERY_S = 0.025
"""Counting takes about 10 us; the shortest window is ten of these."""


class Meter:
    """Counts what batches take of a process, from its first one on.

    Args:
        session: with the agent; None without one.
        row: to count into.

    Example:
        >>> meter = Meter(session, row)
        >>> meter.begin()
        >>> meter.sometimes()  # with every sample
        >>> meter.count()  # at the end
    """

    def __init__(self, session: Session | Fleet | None, row: Row) -> None:
        self._session = session
        self._row = row
        self._is_worker = get_worker_info() is not None
        # A worker has no other work than loading; in the main process that is some of what its main thread does.
        self._clock = time.process_time if self._is_worker else time.thread_time
        self._cpu_s, self._since_s = self._clock(), time.monotonic()
        self._before = _counted(session)

    def begin(self) -> None:
        """A batch begins. What a worker has done since the last one ended was done to that: collating and sending."""
        cpu_s = self._clock()
        if self._is_worker:
            self._row.add(loader_cpu_s=cpu_s - self._cpu_s, busy_s=cpu_s - self._cpu_s)
        self._cpu_s, self._since_s, self._before = cpu_s, time.monotonic(), _counted(self._session)

    def sometimes(self) -> None:
        """Count, if that was long ago."""
        if time.monotonic() - self._since_s >= EVERY_S:
            self.count()

    def count(self) -> None:
        """Count what has been done since the last time."""
        cpu_s, now_s, counted = self._clock(), time.monotonic(), _counted(self._session)
        added = {name: value - self._before[name] for name, value in counted.items()}
        busy_s = now_s - self._since_s - added.get("waited_s", 0.0)
        self._row.add(loader_cpu_s=cpu_s - self._cpu_s, busy_s=busy_s, **added)
        self._cpu_s, self._since_s, self._before = cpu_s, now_s, counted


def _counted(session: Session | Fleet | None) -> dict[str, float]:
    """What a session has counted, by the names of the counters."""
    if session is None:
        return {}
    return {
        "wire_bytes": session.received_nbytes,
        "retries": session.retries,
        "corrupt": session.corrupt,
        "malformed": session.malformed,
        "waited_s": session.waited_s,
        "starved_s": session.starved_s,
        "fresh": session.fresh,
        "net_s": session.net_s,
        "fresh_queued_s": session.queued_s,
    }
