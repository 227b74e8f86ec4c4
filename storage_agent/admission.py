"""Who gets served next, and who has asked for too much. Pure: no sockets, no clock."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Admission(Generic[Job]):
    """Bounded queue of jobs with one turn per client, so that a large request does not starve a small one.

    Args:
        max_outstanding: admitted and not yet finished samples per client.
        max_queued: jobs that may wait, over all clients; whoever pushes asks `space` before.

    Example:
        >>> admission: Admission[str] = Admission(max_outstanding=8, max_queued=4)
        >>> admission.admit(b"loader", 2), admission.push(b"loader", "a job"), admission.pop()
        (True, None, 'a job')
    """

    def __init__(self, max_outstanding: int, max_queued: int) -> None:
        self.max_outstanding = max_outstanding
        self.max_queued = max_queued
        self._outstanding: dict[bytes, int] = {}
        self._waiting: OrderedDict[bytes, deque[Job]] = OrderedDict()
        self._queued = 0

    @property
    def queued(self) -> int:
        """Jobs that wait for a worker."""
        return self._queued

    @property
    def outstanding(self) -> int:
        """Admitted samples that have no answer yet, over all clients."""
        return sum(self._outstanding.values())

    @property
    def clients(self) -> int:
        """Clients with unanswered samples."""
        return len(self._outstanding)

    @property
    def space(self) -> int:
        """Jobs that may still be queued."""
        return max(0, self.max_queued - self._queued)

    def outstanding_of(self, client: bytes) -> int:
        """Admitted samples of one client that have no answer yet."""
        return self._outstanding.get(client, 0)

    def admit(self, client: bytes, samples: int) -> bool:
        """Count more samples for a client; False, and nothing counted, if that is over its limit.

        Args:
            client: its routing id.
            samples: how many it asks for.
        """
        total = self._outstanding.get(client, 0) + samples
        if total > self.max_outstanding:
            return False
        if samples:
            self._outstanding[client] = total
        return True

    def finish(self, client: bytes, samples: int = 1) -> None:
        """Admitted samples have their answers.

        Args:
            client: whose they are.
            samples: how many.
        """
        left = self._outstanding.get(client, 0) - samples
        if left > 0:
            self._outstanding[client] = left
        else:
            self._outstanding.pop(client, None)

    def push(self, client: bytes, job: Job) -> None:
        """Queue a job for a worker.

        Args:
            client: who wants it.
            job: what it wants.
        """
        self._waiting.setdefault(client, deque()).append(job)
        self._queued += 1

    def pop(self) -> Job | None:
        """The next job: the oldest of the client whose turn it is; None when nothing waits."""
        if not self._waiting:
            return None
        client, jobs = self._waiting.popitem(last=False)
        job = jobs.popleft()
        self._queued -= 1
        if jobs:
            self._waiting[client] = jobs
        return job
