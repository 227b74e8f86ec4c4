"""Fetches objects of far stores, many at a time, before the jobs that need them are handed out.

A store that answers after 50 ms gives a waiting worker 20 objects per second. Here the fetching process has them ready
when a worker or reader thread asks; the bytes do not pass through this process. An unreachable store is waited for
here, where no worker waits. Each export has room of its own, so that the others go on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from storage_agent.jobs.jobs import Job
from storage_agent.jobs.turns import Turns
from storage_agent.stores import Exports

IN_FLIGHT = 64
"""Number of objects fetched at once per export: 1280 per second from a store that answers after 50 ms."""
MAX_WAITING = 64
"""Number of a client's jobs waiting for a worker or reader, at which nothing more is fetched for it: those, or its
wire, are slower."""


@dataclass(frozen=True)
class _Wanted:
    job: Job
    then: Callable[[Job], None]


@dataclass
class _Lane:
    """Fetches of one export: those that wait, and how many more may start."""

    turns: Turns[_Wanted] = field(default_factory=Turns)
    room: int = IN_FLIGHT


class Ahead:
    """Has objects fetched; each export's clients take turns by the time of their fetches. One thread owns it.

    Args:
        exports: exports of the agent.
        hand_in: called by the fetching threads; makes the owner's thread call a function with its arguments.
        waiting_of: returns the number of a client's jobs that wait for a worker or reader.

    Example:
        >>> ahead = Ahead(exports, hand_in, admission.turns.waiting_of)
        >>> near = ahead.take(jobs, lambda job: queue([job]), admission.finish)
    """

    def __init__(self, exports: Exports, hand_in: Callable[..., None], waiting_of: Callable[[bytes], int]) -> None:
        self._exports = exports
        self._hand_in = hand_in
        self._waiting_of = waiting_of
        self._lanes: defaultdict[str, _Lane] = defaultdict(_Lane)
        self._ids: dict[bytes, set[int]] = {}
        """Ids of samples that wait here or are being fetched, by client."""
        self._tasks: queue.SimpleQueue[_Wanted | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def of(self, client: bytes) -> int:
        """Return the number of a client's samples that wait here or are being fetched."""
        return len(self._ids.get(client, ()))

    def take(self, jobs: Sequence[Job], then: Callable[[Job], None], twice: Callable[[bytes], None]) -> list[Job]:
        """Have the objects of jobs fetched; return the jobs with near files, which need no fetch.

        Args:
            jobs: the new jobs.
            then: called with each other job, once its object is here or has failed.
            twice: called with the client of each job that is already here: its sample was requested again too early.
        """
        near = [job for job in jobs if not self._exports.is_far(job.fetch.export)]
        for job in jobs if len(near) < len(jobs) else ():
            client = job.fetch.client
            if not self._exports.is_far(job.fetch.export):
                continue
            ids = self._ids.setdefault(client, set())
            if job.item.id in ids:
                twice(client)
            else:
                ids.add(job.item.id)
                self._lanes[job.fetch.export].turns.push(client, _Wanted(job, then))
        self.assign()
        return near

    def assign(self) -> None:
        """Start waiting fetches as far as there is room and their clients' jobs do not pile up."""
        for lane in self._lanes.values():
            if len(lane.turns):
                self._assign(lane)

    def _assign(self, lane: _Lane) -> None:
        for client in self._ids:
            lane.turns.hold(client, self._waiting_of(client) >= MAX_WAITING)
        while lane.room and (turn := lane.turns.pop()) is not None:
            lane.room -= 1
            self._tasks.put(turn[1])
            if len(self._threads) < sum(IN_FLIGHT - one.room for one in self._lanes.values()):
                name = f"ahead-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
                self._threads[-1].start()

    def drop(self, client: bytes) -> int:
        """Forget a client; return the number of its samples that were here."""
        for lane in self._lanes.values():
            lane.turns.drop(client)
        return len(self._ids.pop(client, ()))

    def stop(self) -> None:
        """End the threads after their current fetches, without waiting for them."""
        for _ in self._threads:
            self._tasks.put(None)

    def _work(self) -> None:
        while (wanted := self._tasks.get()) is not None:
            since_s = time.monotonic()
            self._exports.fetch(wanted.job.fetch.export, wanted.job.item.key)
            self._hand_in(self._fetched, wanted, time.monotonic() - since_s)

    def _fetched(self, wanted: _Wanted, took_s: float) -> None:
        client, lane = wanted.job.fetch.client, self._lanes[wanted.job.fetch.export]
        lane.room += 1
        lane.turns.spent(client, took_s)
        ids = self._ids.get(client, set())
        if wanted.job.item.id in ids:  # else the client is gone
            ids.remove(wanted.job.item.id)
            if not ids:
                del self._ids[client]
            wanted.then(wanted.job)
        self.assign()
