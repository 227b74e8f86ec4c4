"""Bounds the requests of clients and the queue of jobs for workers. Pure: no sockets, no clock."""

from __future__ import annotations

from typing import Generic, TypeVar

from storage_agent.jobs.turns import Turns

Job = TypeVar("Job")
MAX_NBYTES = 256 << 20
"""Bytes for the unanswered requests of all clients; each client may use at least its share."""
REQUEST_NBYTES = 1024
"""Bytes that one request takes besides its text."""


class Admission(Generic[Job]):
    """Bounded queues of jobs for workers, with turns by the jobs' cost there, and counts of unanswered samples.

    Args:
        max_outstanding: maximum admitted and unfinished samples per client.
        max_queued: maximum waiting jobs of all clients in each queue; the caller checks `space` before it pushes.

    Example:
        >>> admission: Admission[str] = Admission(max_outstanding=8, max_queued=4)
        >>> admission.admit(b"loader", 2), admission.turns.push(b"loader", "a job"), admission.turns.pop()
        (True, None, (b'loader', 'a job'))

    Attributes:
        turns: the waiting jobs for workers that run programs.
        op_turns: the waiting jobs for workers that run named ops.
    """

    def __init__(self, max_outstanding: int, max_queued: int) -> None:
        self.max_outstanding = max_outstanding
        self.max_queued = max_queued
        self.turns: Turns[Job] = Turns()
        self.op_turns: Turns[Job] = Turns()
        self._outstanding: dict[bytes, int] = {}
        self._nbytes: dict[bytes, float] = {}
        """Bytes of unanswered requests, by client."""
        self._all_nbytes = 0.0

    @property
    def queued(self) -> int:
        """Number of jobs that wait for a worker."""
        return len(self.turns) + len(self.op_turns)

    def waiting_of(self, client: bytes) -> int:
        """Return the number of a client's jobs that wait for a worker."""
        return self.turns.waiting_of(client) + self.op_turns.waiting_of(client)

    def shut(self, *, shut: bool) -> None:
        """Let no client's turn come until the next call, or let turns come again."""
        self.turns.shut = self.op_turns.shut = shut

    def hold(self, client: bytes, held: bool) -> None:
        """Pass a client over, or no longer; see `Turns.hold`."""
        self.turns.hold(client, held)
        self.op_turns.hold(client, held)

    @property
    def outstanding(self) -> int:
        """Number of admitted samples of all clients without an answer."""
        return sum(self._outstanding.values())

    @property
    def clients(self) -> int:
        """Number of clients with unanswered samples."""
        return len(self._outstanding)

    def space(self, client: bytes, *, with_ops: bool = False) -> int:
        """Return the number of jobs that a client may still queue: all free places, or the rest of its share if that is
        more.

        Args:
            client: its routing id.
            with_ops: True for the queue of jobs that run named ops.
        """
        turns = self.op_turns if with_ops else self.turns
        share = self.max_queued // (turns.clients + 1)
        return max(0, self.max_queued - len(turns), share - turns.waiting_of(client))

    def outstanding_of(self, client: bytes) -> int:
        """Return the number of a client's admitted samples without an answer."""
        return self._outstanding.get(client, 0)

    def admit(self, client: bytes, samples: int, nbytes: int = 0) -> bool:
        """Count more samples for a client and return True; return False, and count nothing, if that exceeds its limit.

        Args:
            client: routing id of the client.
            samples: number of requested samples.
            nbytes: bytes of the message that requests them.
        """
        total = self._outstanding.get(client, 0) + samples
        if total > self.max_outstanding or not self._has_memory(client, samples * REQUEST_NBYTES + nbytes):
            return False
        if samples:
            self._outstanding[client] = total
            self._take(client, self._nbytes.get(client, 0.0) + samples * REQUEST_NBYTES + nbytes)
        return True

    def _has_memory(self, client: bytes, nbytes: int) -> bool:
        """True if the free memory, or the client's share, has room for requests of this many bytes."""
        share = MAX_NBYTES // (len(self._outstanding) + 1)
        return self._all_nbytes + nbytes <= MAX_NBYTES or self._nbytes.get(client, 0.0) + nbytes <= share

    def _take(self, client: bytes, nbytes: float) -> None:
        self._all_nbytes += nbytes - self._nbytes.pop(client, 0.0)
        if nbytes:
            self._nbytes[client] = nbytes

    def finish(self, client: bytes, samples: int = 1) -> None:
        """Note that admitted samples are answered, or no longer needed.

        Args:
            client: routing id of their client.
            samples: number of samples.
        """
        before = self._outstanding.get(client, 0)
        left = before - samples
        if left > 0:
            self._outstanding[client] = left
            self._take(client, self._nbytes[client] * left / before)
        else:
            self._outstanding.pop(client, None)
            self._take(client, 0.0)

    def forget(self, client: bytes) -> None:
        """Forget a client that has left, with its waiting jobs."""
        self.finish(client, len(self.turns.drop(client)) + len(self.op_turns.drop(client)))
