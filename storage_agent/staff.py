"""The workers as the broker sees them: who gets which job, and what to do when one dies.

Pure: what has happened and the time in, instructions out. No socket, no clock, no process.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import Failed, Failure
from storage_agent.admission import Admission
from storage_agent.instructions import Build, GiveUp, Instruction, Log, Order, Read, Refuse, Start
from storage_agent.jobs import Job
from storage_agent.pipelines import Pipelines
from storage_agent.workers import words

JOBS_PER_WORKER = 2
"""One being worked on and one on its way, so that a worker never waits for the broker."""
STUCK_S = 0.05
"""A job that waits at its worker for longer, behind a slow one, is given to an idle worker as well."""
MAX_EARLY_DEATHS = 3
"""Workers that end one after the other before any is ready: more would end, too."""
MAX_DEATHS_PER_BUILD = 2
"""A pipeline whose building has ended so many workers is refused; one may have died of something else."""
MAX_KNOWN = 64
"""Pipelines that a worker keeps, the ones used last: more than the training runs that share an agent have."""


@dataclass
class _Task:
    """A job at a worker; at two when it was `doubled`, and then the first answer counts."""

    job: Job
    doubled: bool = False
    answered: bool = False


@dataclass
class _Building:
    """A pipeline to be built, and the workers that have died of it."""

    build: Build
    deaths: int = 0


@dataclass
class _Worker:
    """What has been sent to a worker and not been answered, oldest first, and when it began on the first task.

    `known` are the digests of the pipelines it has learnt, the one used last at the end.
    """

    tasks: deque[_Task] = field(default_factory=deque)
    builds: deque[_Building] = field(default_factory=deque)
    known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    ready: bool = False
    usable: bool = False
    since_s: float = 0.0

    @property
    def load(self) -> int:
        return len(self.tasks) + len(self.builds)

    @property
    def waiting(self) -> _Task | None:
        """The task that waits behind another and that no other worker has."""
        if len(self.tasks) < 2 or self.tasks[-1].doubled:
            return None
        return self.tasks[-1]


class Staff:
    """Decides what each worker does. A worker answers in the order of what it was sent.

    Args:
        admission: whose jobs wait.
        pipelines: those that have been registered; shared with the desk.

    Example:
        >>> staff = Staff(Admission(8, 8), pipelines)
        >>> staff.hired(1)
        >>> staff.ready(1)
        >>> staff.queue([job], now_s=0.0)
        [Order(worker=1, frames=[b'learn', ...]), Order(worker=1, frames=[b'job', ...])]
        >>> staff.answered(1, now_s=0.1)
        Job(...)

    Attributes:
        deaths: workers that have died.
        per_worker: cores that each worker has now, all at work; to be told.
    """

    def __init__(self, admission: Admission[Job], pipelines: Pipelines) -> None:
        self._admission = admission
        self._pipelines = pipelines
        self._workers: dict[int, _Worker] = {}
        self._builds: deque[_Building] = deque()
        self._early_deaths = 0
        self._stopping = False
        self.deaths = 0
        self.per_worker = 1.0

    @property
    def room(self) -> int:
        """Jobs that would be taken at once."""
        free = sum(max(0, JOBS_PER_WORKER - worker.load) for worker in self._workers.values() if worker.usable)
        return max(0, free - len(self._builds))

    @property
    def building(self) -> int:
        """Pipelines that wait for a worker."""
        return len(self._builds)

    @property
    def ready_workers(self) -> list[int]:
        """Numbers of those that can be given work."""
        return [number for number, worker in self._workers.items() if worker.usable]

    # --- what has happened ------------------------------------------------------------------------------------

    def hired(self, number: int) -> None:
        """A worker is being started."""
        self._workers[number] = _Worker()

    def ready(self, number: int) -> None:
        """A worker has loaded its ops."""
        self._early_deaths = 0
        self._workers[number].ready = True
        self._workers[number].usable = True

    def left(self, number: int) -> None:
        """A worker has hung up: it gets nothing more. Its death will be reported."""
        self._workers[number].usable = False

    def stop(self) -> None:
        """Replace nobody any more."""
        self._stopping = True

    def queue(self, jobs: Sequence[Job], *, now_s: float) -> list[Instruction]:
        """Jobs have come.

        Args:
            jobs: of one client, admitted.
            now_s: the time.
        """
        for job in jobs:
            self._admission.push(job.fetch.client, job)
        return self.assign(now_s)

    def build(self, build: Build, *, now_s: float) -> list[Instruction]:
        """A pipeline has come.

        Args:
            build: its registration.
            now_s: the time.
        """
        self._builds.append(_Building(build))
        return self.assign(now_s)

    def answered(self, number: int, *, now_s: float) -> Job | None:
        """A worker has answered the oldest of its jobs: which that is, or None if another was faster.

        Args:
            number: the worker's.
            now_s: the time.
        """
        worker = self._workers[number]
        task = worker.tasks.popleft()
        worker.since_s = now_s
        if task.answered:
            return None
        task.answered = True
        return task.job

    def built(self, number: int) -> Build:
        """A worker has answered the oldest of its registrations: which that is."""
        return self._workers[number].builds.popleft().build

    def died(self, number: int, exit_code: str) -> list[Instruction]:
        """A worker has died: its jobs go out as files (one of them may have killed it), another is started.

        Args:
            number: the worker's.
            exit_code: of its process, or why it could not be started.
        """
        worker = self._workers.pop(number)
        self.deaths += 1
        done: list[Instruction] = [_epitaph(number, worker, exit_code)]
        elsewhere = [id(task) for other in self._workers.values() for task in other.tasks]
        lost = [task for task in worker.tasks if not task.answered and id(task) not in elsewhere]
        for task in lost:
            task.answered = True
        if lost:
            note = f"the agent's worker died on this or its next sample (exit code {exit_code})"
            done.append(Read([task.job for task in lost], note))
        for building in reversed(worker.builds):
            done += self._build_again(building, exit_code)
        if self._stopping:
            return done
        if not worker.ready:
            self._early_deaths += 1
            if self._early_deaths >= MAX_EARLY_DEATHS:
                text = f"workers must start, but {MAX_EARLY_DEATHS} ended at once (exit code {exit_code})"
                return [*done, GiveUp(text)]
        return [*done, Start()]

    # --- who does what ----------------------------------------------------------------------------------------

    def assign(self, now_s: float) -> list[Instruction]:
        """Give waiting work to the worker with least of it, until all have enough."""
        done: list[Instruction] = []
        while self._builds or self._admission.queued:
            number = self._least_loaded()
            if number is None:
                break
            if self._builds:
                done += self._have_built(number, self._builds.popleft())
            elif (job := self._admission.pop()) is not None:
                done += [Read([job])] if job.is_outdated(self.per_worker) else self._give(number, _Task(job), now_s)
        if self._stopping and not self.ready_workers:
            left = []
            while (job := self._admission.pop()) is not None:
                left.append(job)
            if left:
                done.append(Read(left, "the agent is stopping"))
        return done

    def relieve(self, now_s: float) -> tuple[list[Instruction], float | None]:
        """Give idle workers what waits behind a slow job.

        Returns:
            Orders, and the seconds until there may be more of that to do (None: not before something happens).
        """
        idle = [number for number, worker in self._workers.items() if worker.usable and not worker.load]
        done: list[Instruction] = []
        wait_s: float | None = None
        if not idle:
            return done, wait_s
        for worker in self._workers.values():
            task = worker.waiting
            if task is None:
                continue
            left_s = worker.since_s + STUCK_S - now_s
            if left_s > 0:
                wait_s = min(left_s, wait_s or STUCK_S)
            elif idle and task.job.fetch.digest in self._pipelines:
                task.doubled = True
                done += self._give(idle.pop(), task, now_s)
        return done, wait_s

    def _least_loaded(self) -> int | None:
        """The worker for the next job; None when all have enough, or none is there."""
        best, least = None, JOBS_PER_WORKER
        for number, worker in self._workers.items():
            if worker.usable and worker.load < least:
                best, least = number, worker.load
        return best

    def _have_built(self, number: int, building: _Building) -> list[Instruction]:
        worker, build = self._workers[number], building.build
        worker.builds.append(building)
        done = self._teach(number, worker, build.digest, build.registration)
        return [*done, Order(number, [words.REGISTER, build.digest.encode()])]

    def _give(self, number: int, task: _Task, now_s: float) -> list[Instruction]:
        digest = task.job.fetch.digest
        registration = self._pipelines.get(digest)
        worker = self._workers[number]
        if registration is None and digest not in worker.known:
            task.answered = True
            return [Read([task.job], "its pipeline has been forgotten, as many others have come since")]
        if not worker.tasks:
            worker.since_s = now_s
        worker.tasks.append(task)
        done = self._teach(number, worker, digest, registration)
        done.append(Order(number, [words.JOB, *task.job.frames()]))
        return done

    def _teach(self, number: int, worker: _Worker, digest: str, registration: bytes | None) -> list[Instruction]:
        """Send the pipeline if the worker lacks it, and have it forget another if that is one too many."""
        if digest in worker.known:
            worker.known.move_to_end(digest)
            return []
        assert registration is not None, "a worker that lacks a pipeline must be sent it"
        worker.known[digest] = None
        frames: list[Payload] = [words.LEARN, digest.encode(), registration]
        done: list[Instruction] = [Order(number, frames)]
        if len(worker.known) > MAX_KNOWN:
            forgotten, _ = worker.known.popitem(last=False)
            done.append(Order(number, [words.FORGET, forgotten.encode()]))
        return done

    def _build_again(self, building: _Building, exit_code: str) -> list[Instruction]:
        """Have another worker build it, unless too many have died of it."""
        building.deaths += 1
        if building.deaths < MAX_DEATHS_PER_BUILD and not self._stopping:
            self._builds.appendleft(building)
            return []
        build = building.build
        self._admission.finish(build.client)
        text = f"two of the agent's workers died while they built this pipeline (exit code {exit_code})"
        return [Refuse(build.client, Failed(Failure.BAD_PIPELINE, text, digest=build.digest))]


def _epitaph(number: int, worker: _Worker, exit_code: str) -> Log:
    """What is known of a worker's end."""
    details = {"worker": number, "exit_code": exit_code}
    if worker.tasks:
        jobs = [task.job for task in worker.tasks]
        details["samples"] = [f"{job.fetch.export}/{job.item.key}" for job in jobs]
    if worker.builds:
        details["building"] = [building.build.digest for building in worker.builds]
    return Log("worker died", warning=True, details=details)
