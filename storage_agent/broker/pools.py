"""The two pools of workers: those that run programs, and those that run named ops and have torch for it.

Pure: events and the time in, instructions out. No socket, no clock, no process.
"""

from __future__ import annotations

from collections.abc import Sequence

from sophon_loader.wire.messages import Registered
from storage_agent.broker.instructions import Build, EndWorker, GiveUp, Instruction, Log, Read, Start, Tell
from storage_agent.broker.staff import Staff
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import Registrations


class Pools:
    """Decides which pool a job or a registration goes to. Each pool has its own queue, and neither waits for the other.

    The pool of named ops starts with the first registration, or the first job of a pipeline. If it cannot be started,
    pipelines are answered as by an agent without torch: files, with the reason.

    Args:
        admission: whose jobs wait.
        pipelines: those that have been registered; shared with the desk.
        job_s: see `Staff`.
        op_workers: workers of the pool of named ops.
        lacking: why there is none; "" if there is one.

    Example:
        >>> pools = Pools(Admission(8, 8), pipelines, 30.0, op_workers=1)
        >>> pools.build(build, now_s=0.0)
        [Start(with_ops=True)]

    Attributes:
        programs: the workers that run programs.
        ops: the workers that run named ops.
        lacking: why no named op is run; "" while they are.
    """

    def __init__(
        self, admission: Admission[Job], pipelines: Registrations, job_s: float, op_workers: int, lacking: str = ""
    ) -> None:
        self._admission = admission
        self.programs = Staff(admission, pipelines, job_s)
        self.ops = Staff(admission, pipelines, job_s, with_ops=True)
        self._op_workers = op_workers
        self.lacking = lacking
        self._started = False
        self._pool_of: dict[int, Staff] = {}

    def __getitem__(self, number: int) -> Staff:
        """The pool that a worker is of.

        Args:
            number: the worker's.
        """
        return self._pool_of[number]

    @property
    def ready_workers(self) -> list[int]:
        """Numbers of those that can be given work."""
        return self.programs.ready_workers + self.ops.ready_workers

    @property
    def deaths(self) -> int:
        """Workers that have died."""
        return self.programs.deaths + self.ops.deaths

    def at_work(self, client: bytes) -> int:
        """A client's samples that wait for a worker or are at one, see `Staff.at_work`."""
        return self.programs.at_work(client) + self.ops.at_work(client)

    def start_ops(self) -> list[Instruction]:
        """Start the pool of named ops, unless it has been started or there is none."""
        if self._started or self.lacking:
            return []
        self._started = True
        return [Start(with_ops=True)] * self._op_workers

    def hired(self, number: int, *, with_ops: bool) -> None:
        """A worker is being started.

        Args:
            number: the worker's.
            with_ops: its pool, see `Start`.
        """
        self._pool_of[number] = self.ops if with_ops else self.programs
        self._pool_of[number].hired(number)

    def died(self, number: int, exit_code: str, *, now_s: float) -> list[Instruction]:
        """A worker has died, see `Staff.died`; op workers that cannot start are given up."""
        pool = self._pool_of.pop(number)
        done = pool.died(number, exit_code, now_s=now_s)
        if pool is self.programs:
            return done
        if self.lacking:  # it was ended for that, which is in the log
            return [one for one in done if not isinstance(one, Log)]
        reasons = [one.reason for one in done if isinstance(one, GiveUp)]
        kept = [one for one in done if not isinstance(one, GiveUp)]
        return kept + [order for reason in reasons for order in self.give_ops_up(reason)]

    def give_ops_up(self, reason: str) -> list[Instruction]:
        """Leave named ops to loaders from now on; logged once.

        Args:
            reason: for the log, the status, and the loaders whose jobs are answered with files.
        """
        if self.lacking:
            return []
        self.lacking = reason
        jobs, builds, numbers = self.ops.give_up()
        done: list[Instruction] = [Log("no pipeline is run", warning=True, details={"reason": reason})]
        done += [EndWorker(number) for number in numbers]
        done += [Read(jobs, self._note)] if jobs else []
        return [*done, *(self._not_built(build) for build in builds)]

    def stop(self) -> None:
        """Replace no worker from now on."""
        self.programs.stop()
        self.ops.stop()

    def queue(self, jobs: Sequence[Job], *, now_s: float) -> list[Instruction]:
        """Take in jobs, see `Staff.queue`.

        Args:
            jobs: of one Fetch, admitted.
            now_s: the time.
        """
        if jobs[0].fetch.has_programs:
            return self.programs.queue(jobs, now_s=now_s)
        if self.lacking:
            return [Read(jobs, self._note)]
        return [*self.start_ops(), *self.ops.queue(jobs, now_s=now_s)]

    def build(self, build: Build, *, now_s: float) -> list[Instruction]:
        """Have an op worker report how far a pipeline can be run; without op workers, the answer is no op.

        Args:
            build: its registration.
            now_s: the time.
        """
        if self.lacking:
            return [self._not_built(build)]
        return [*self.start_ops(), *self.ops.build(build, now_s=now_s)]

    def assign(self, now_s: float) -> list[Instruction]:
        """Give waiting work to workers, see `Staff.assign`."""
        return self.programs.assign(now_s) + self.ops.assign(now_s)

    def relieve(self, now_s: float) -> tuple[list[Instruction], float | None]:
        """See to what has taken too long, see `Staff.relieve`."""
        orders, wait_s = self.programs.relieve(now_s)
        if not self._started:
            return orders, wait_s
        others, other_s = self.ops.relieve(now_s)
        waits_s = [one for one in (wait_s, other_s) if one is not None]
        return orders + others, min(waits_s, default=None)

    def share_cores(self, per_worker: float) -> None:
        """Set the cores that each worker of both pools has."""
        self.programs.per_worker = self.ops.per_worker = per_worker

    @property
    def _note(self) -> str:
        return f"this agent runs no named ops ({self.lacking}); it serves programs, files and parts: docs/agent.md"

    def _not_built(self, build: Build) -> Instruction:
        self._admission.finish(build.client)
        return Tell(build.client, Registered(build.digest, 0))
