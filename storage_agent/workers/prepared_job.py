"""A job of either kind between its two steps: looked at, not answered yet."""

from __future__ import annotations

from dataclasses import dataclass

from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, FileRead
from storage_agent.workers.agent_choice import Chosen
from storage_agent.workers.trials import KnownPicture


@dataclass(frozen=True)
class Prepared:
    """A job whose file has been read, and what it is to be answered with.

    Args:
        job: the sample.
        read: its file, or why there is none.
        choice: the cut and the encoding.
        picture: what has been told of it, if the choice is left to this worker.
        error: what went wrong with looking or choosing; the file goes out then.
        looked_s: how long that took.
        ready_s: when all this was done, by this host's monotonic clock.
    """

    job: Job
    read: FileRead | Answer
    choice: Chosen
    picture: KnownPicture | None = None
    error: Exception | None = None
    looked_s: float = 0.0
    ready_s: float = 0.0

    @property
    def expected_s(self) -> float:
        """CPU seconds that it will probably take."""
        return self.choice.expected_s

    @property
    def nbytes(self) -> int:
        """Of the file that is kept until the job is answered."""
        return len(self.read.data) if isinstance(self.read, FileRead) else 0
