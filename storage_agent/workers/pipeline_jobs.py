"""Jobs that name a pipeline, as a worker's loop sees them; and what stands in for pipelines in a worker of programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sophon_loader.wire.messages import Failed, Failure
from storage_agent.jobs.jobs import Job
from storage_agent.reading.answers import Answer, FileRead, file_answer, read_file
from storage_agent.stores import Exports
from storage_agent.workers.agent_choice import Chosen, Done, Tried
from storage_agent.workers.trials import KnownPicture, SampleTrial


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


class PipelineJobs(Protocol):
    """A worker's pipelines, and what it does to jobs that name one."""

    def learn(self, digest: str, registration: bytes) -> None:
        """Keep a registration.

        Args:
            digest: the name by which jobs will call for it.
            registration: see `pipeline/registration.py`.
        """

    def forget(self, digest: str) -> None:
        """Drop a registration, and what its samples were found to take."""

    def hear(self, digest: str, trial: SampleTrial) -> None:
        """Learn from another worker's trial of a sample.

        Args:
            digest: of the pipeline.
            trial: what it found.
        """

    def register(self, digest: str) -> Answer:
        """Return how many ops of a pipeline run here, or why none does.

        Args:
            digest: of one that has been learnt.
        """
        ...

    def prepare(self, exports: Exports, job: Job) -> Prepared:
        """Read a job's file, and choose if that is left to this worker.

        Args:
            exports: the agent's.
            job: the sample; its pipeline has been learnt.
        """
        ...

    def answer(self, prepared: Prepared) -> Done:
        """Run a job. If an op or the encoding fails, the file goes out and the loader meets the failure itself.

        Args:
            prepared: the job.
        """
        ...

    def try_out(self, job: Job, done: Done) -> Tried:
        """Learn from a job that has been answered, and run its sample through the whole pipeline if a trial is due.

        Args:
            job: the sample.
            done: what came of it.
        """
        ...


class NoPipelines:
    """The pipelines of a worker that runs programs: none is built, and jobs that name one get their file with a note.

    Example:
        >>> NoPipelines().register("digest").message.failure
        'bad-pipeline'
    """

    def learn(self, digest: str, registration: bytes) -> None:
        """Keep nothing."""

    def forget(self, digest: str) -> None:
        """Drop nothing."""

    def hear(self, digest: str, trial: SampleTrial) -> None:
        """Learn nothing."""

    def register(self, digest: str) -> Answer:
        """Refuse a pipeline."""
        return Answer(Failed(Failure.BAD_PIPELINE, _why(), digest=digest))

    def prepare(self, exports: Exports, job: Job) -> Prepared:
        """Read a job's file."""
        return Prepared(job, read_file(exports, job), Chosen(0, "file", expected_s=0.0))

    def answer(self, prepared: Prepared) -> Done:
        """Answer with the file, and why."""
        read = prepared.read
        return Done(read if isinstance(read, Answer) else file_answer(prepared.job, read, _why()))

    def try_out(self, job: Job, done: Done) -> Tried:
        """Try nothing."""
        return Tried()


def _why() -> str:
    return "this worker runs no named ops; it serves programs, files and parts: docs/agent.md"
