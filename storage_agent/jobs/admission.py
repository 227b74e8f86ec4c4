"""Who gets served next, and who has asked for too much. Pure: no sockets, no clock."""

from __future__ import annotations

from typing import Generic, TypeVar

from storage_agent.jobs.turns import Turns

Job = TypeVar("Job")
MAX_NBYTES = 256 << 20
"""Memory for unanswered requests of all clients; a client has at least its share of it."""
REQUEST_NBYTES = 1024
"""What one takes besides its text."""


class Admission(Generic[Job]):
    """Bounded queues of jobs for workers, with turns by what jobs cost there, and counts of what has no answer yet.

    Args:
        max_outstanding: admitted and not yet finished samples per client.
        max_queued: jobs that may wait in each queue, over all clients; whoever pushes asks `space` before.

    Example:
        >>> admission: Admission[str] = Admission(max_outstanding=8, max_queued=4)
        >>> admission.admit(b"loader", 2), admission.turns.push(b"loader", "a job"), admission.turns.pop()
        (True, None, (b'loader', 'a job'))

    Attributes:
        turns: the jobs that wait for workers that run programs.
        op_turns: the jobs that wait for workers that run named ops.
    """

    def __init__(self, max_outstanding: int, max_queued: int) -> None:
        self.max_outstanding = max_outstanding
        self.max_queued = max_queued
        self.turns: Turns[Job] = Turns()
        self.op_turns: Turns[Job] = Turns()
        self._outstanding: dict[bytes, int] = {}
        self._nbytes: dict[bytes, float] = {}
        """What the unanswered requests of each client take."""
        self._all_nbytes = 0.0

    @property
    def queued(self) -> int:
        """Jobs that wait for a worker."""
        return len(self.turns) + len(self.op_turns)

    def waiting_of(self, client: bytes) -> int:
        """Jobs of a client that wait for a worker."""
        return self.turns.waiting_of(client) + self.op_turns.waiting_of(client)

    def shut(self, *, shut: bool) -> None:
        """Have no client's turn come for now, or again."""
        self.turns.shut = self.op_turns.shut = shut

    def hold(self, client: bytes, held: bool) -> None:
        """Pass a client over, or no longer; see `Turns.hold`."""
        self.turns.hold(client, held)
        self.op_turns.hold(client, held)

    @property
    def outstanding(self) -> int:
        """Admitted samples that have no answer yet, over all clients."""
        return sum(self._outstanding.values())

    @property
    def clients(self) -> int:
        """Clients with unanswered samples."""
        return len(self._outstanding)

    def space(self, client: bytes, *, with_ops: bool = False) -> int:
        """Jobs of a client that may still be queued: as many as are free in all, or are missing to its share of all.

        Args:
            client: its routing id.
            with_ops: True for the queue of jobs that run named ops.
        """
        turns = self.op_turns if with_ops else self.turns
        share = self.max_queued // (turns.clients + 1)
        return max(0, self.max_queued - len(turns), share - turns.waiting_of(client))

    def outstanding_of(self, client: bytes) -> int:
        """Admitted samples of one client that have no answer yet."""
        return self._outstanding.get(client, 0)

    def admit(self, client: bytes, samples: int, nbytes: int = 0) -> bool:
        """Count more samples for a client; False, and nothing counted, if that is over its limit.

        Args:
            client: its routing id.
            samples: how many it asks for.
            nbytes: of the message in which it does.
        """
        total = self._outstanding.get(client, 0) + samples
        if total > self.max_outstanding or not self._has_memory(client, samples * REQUEST_NBYTES + nbytes):
            return False
        if samples:
            self._outstanding[client] = total
            self._take(client, self._nbytes.get(client, 0.0) + samples * REQUEST_NBYTES + nbytes)
        return True

    def _has_memory(self, client: bytes, nbytes: int) -> bool:
        """Whether there is memory for requests of so many bytes: in all, or in the client's share."""
        share = MAX_NBYTES // (len(self._outstanding) + 1)
        return self._all_nbytes + nbytes <= MAX_NBYTES or self._nbytes.get(client, 0.0) + nbytes <= share

    def _take(self, client: bytes, nbytes: float) -> None:
        self._all_nbytes += nbytes - self._nbytes.pop(client, 0.0)
        if nbytes:
            self._nbytes[client] = nbytes

    def finish(self, client: bytes, samples: int = 1) -> None:
        """Admitted samples have their answers, or nobody waits for them any more.

        Args:
            client: whose they are.
            samples: how many.
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
        """A client has left: what it has waiting is not done."""
        self.finish(client, len(self.turns.drop(client)) + len(self.op_turns.drop(client)))
