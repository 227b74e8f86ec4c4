"""The workers as the broker sees them: who gets which job, and what to do when one dies.

Pure: what has happened and the time in, instructions out. No socket, no clock, no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import Failed, Failure
from storage_agent.broker.instructions import Build, EndWorker, GiveUp, Instruction, Read, Refuse, SendToWorker, Start
from storage_agent.broker.worker_record import Building, JobAtWorker, Worker, epitaph
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import Registrations
from storage_agent.jobs.turns import NBYTES_PER_S
from storage_agent.workers import message_types

JOBS_PER_WORKER = 2
"""At least, one being worked on and one on its way, so that a worker never waits for the broker."""
MAX_JOBS_PER_WORKER = 8
AHEAD_S = 0.04
"""Up to so many, of jobs that are short: as many as take so long. A turn of the broker then serves several samples."""
STUCK_S = 0.05
"""A job that waits at its worker for longer, behind a slow one, is given to an idle worker as well."""
STALLED_S = 1.0
"""A job or pipeline that takes its worker for longer, or is expected to: nothing is sent after it. While every worker
is taken up so, the samples of other clients go out as files."""
BUILD_S = 20.0
"""How long a pipeline may take to be built: an ordinary one takes milliseconds."""
MAX_EARLY_DEATHS = 3
"""Workers that end one after the other before any is ready: more would end, too."""
MAX_DEATHS_PER_BUILD = 2
"""A pipeline whose building has ended so many workers is refused; one may have died of something else."""
MAX_KNOWN = 64
"""Pipelines that a worker keeps, the ones used last: more than the training runs that share an agent have."""
MAX_KNOWN_NBYTES = 32 << 20
"""Of their registrations, which take several times as much once they are built."""


class Staff:
    """Decides what each worker does. A worker answers in the order of what it was sent.

    Args:
        admission: whose jobs wait.
        pipelines: those that have been registered; shared with the desk.
        job_s: how long a worker may take for one sample, and for what it was sent before it did that; then it is
            replaced, and the files go out.
        with_ops: True for the workers that run named ops, False for those that run programs.

    Example:
        >>> staff = Staff(Admission(8, 8), pipelines, job_s=30.0)
        >>> staff.hired(1)
        >>> staff.ready(1)
        >>> staff.queue([job], now_s=0.0)
        [SendToWorker(worker=1, frames=[b'learn', ...]), SendToWorker(worker=1, frames=[b'job', ...])]
        >>> staff.answered(1, took_s=0.1, now_s=0.1)
        Job(...)

    Attributes:
        deaths: workers that have died.
        per_worker: cores that each worker has now, all at work; to be told.
    """

    def __init__(
        self, admission: Admission[Job], pipelines: Registrations, job_s: float, *, with_ops: bool = False
    ) -> None:
        self._admission = admission
        self._turns = admission.op_turns if with_ops else admission.turns
        self._start = Start(with_ops)
        self._pipelines = pipelines
        self._job_s = job_s
        self._workers: dict[int, Worker] = {}
        self._builds: deque[Building] = deque()
        self._early_deaths = 0
        self._stopping = False
        self._none_since_s: float | None = None
        """Since when there is no worker; None while there is one."""
        self.deaths = 0
        self.per_worker = 1.0

    @property
    def room(self) -> int:
        """Jobs that would be taken at once."""
        free = sum(max(0, JOBS_PER_WORKER - len(worker.work)) for worker in self._workers.values() if worker.usable)
        return max(0, free - len(self._builds))

    @property
    def building(self) -> int:
        """Pipelines that wait for a worker."""
        return len(self._builds)

    @property
    def ready_workers(self) -> list[int]:
        """Numbers of those that can be given work."""
        return [number for number, worker in self._workers.items() if worker.usable]

    def at_work(self, client: bytes) -> int:
        """A client's samples that wait for a worker or are at one; none while there is no worker.

        Args:
            client: its routing id.
        """
        return len(self._unanswered(client)) if self.ready_workers else 0

    # --- what has happened ------------------------------------------------------------------------------------

    def hired(self, number: int) -> None:
        """A worker is being started."""
        self._workers[number] = Worker()

    def ready(self, number: int) -> None:
        """A worker has loaded its ops."""
        self._early_deaths = 0
        self._workers[number].ready = True
        self._workers[number].usable = True

    def left(self, number: int) -> None:
        """A worker has hung up: it gets nothing more. Its death will be reported."""
        self._workers[number].usable = False

    def stop(self) -> None:
        """Replace no worker from now on."""
        self._stopping = True

    def give_up(self) -> tuple[list[Job], list[Build], list[int]]:
        """Replace no worker and give out no work from now on.

        Returns:
            The jobs and the registrations that wait for a worker, and the numbers of the workers.
        """
        self.stop()
        builds = [building.build for building in self._builds]
        self._builds.clear()
        return self._turns.take_all(), builds, list(self._workers)

    def queue(self, jobs: Sequence[Job], *, now_s: float) -> list[Instruction]:
        """Jobs have come. What waits or is at work is not done once more: its client has asked again too early, and its
        answer is yet to come.

        Args:
            jobs: of one client, admitted.
            now_s: the time.
        """
        client = jobs[0].fetch.client
        unanswered = self._unanswered(client)
        for job in jobs:
            if job.item.id in unanswered:
                self._admission.finish(client)
            else:
                self._turns.push(client, job)
        return self.assign(now_s)

    def _unanswered(self, client: bytes) -> set[int]:
        """Ids of a client's jobs that have yet to be done."""
        tasks = (task for worker in self._workers.values() for task in worker.tasks if not task.answered)
        at_work = {task.job.item.id for task in tasks if task.job.fetch.client == client}
        return at_work.union(job.item.id for job in self._turns.waiting(client))

    def build(self, build: Build, *, now_s: float) -> list[Instruction]:
        """A pipeline has come.

        Args:
            build: its registration.
            now_s: the time.
        """
        self._builds.append(Building(build, AHEAD_S))
        return self.assign(now_s)

    def answered(self, number: int, took_s: float, nbytes: int = 0, *, now_s: float) -> Job | None:
        """A worker has answered the oldest of its jobs: which that is, or None if another was faster.

        Args:
            number: the worker's.
            took_s: how long it was at it.
            nbytes: of the answer.
            now_s: the time.
        """
        task = self._workers[number].hand_in(now_s)
        assert isinstance(task, JobAtWorker), task
        if task.answered:
            return None
        self._finish(task, took_s + nbytes / NBYTES_PER_S)
        return task.job

    def built(self, number: int, *, now_s: float) -> Build:
        """A worker has answered the oldest of its registrations: which that is.

        Args:
            number: the worker's.
            now_s: the time.
        """
        building = self._workers[number].hand_in(now_s)
        assert isinstance(building, Building), building
        return building.build

    def tried(self, number: int, about: str, trial: bytes, *, of_program: bool = False) -> list[Instruction]:
        """A worker has tried a sample: the others that know its pipeline are told, and those that will are later. Of a
        program all that are ready are told; those that start later try for themselves.

        Args:
            number: the worker's.
            about: the digest of the pipeline, or the signature of the program.
            trial: what it found, see `workers/trials.py`.
            of_program: whether it was one.
        """
        self._pipelines.note(about, trial)
        word = message_types.TRIED_PROGRAM if of_program else message_types.TRIED
        known = self._workers.items()
        told = [one for one, worker in known if (worker.usable if of_program else about in worker.known)]
        return [SendToWorker(one, [word, about.encode(), trial]) for one in told if one != number]

    def _finish(self, task: JobAtWorker, cost_s: float) -> None:
        """A job has its answer; who wanted it has had so many seconds of a worker."""
        task.answered = True
        self._turns.spent(task.job.fetch.client, cost_s)

    def died(self, number: int, exit_code: str, *, now_s: float) -> list[Instruction]:
        """A worker has died: its jobs go out as files (one of them may have killed it), another is started.

        Args:
            number: the worker's.
            exit_code: of its process, or why it could not be started.
            now_s: the time.
        """
        worker = self._workers.pop(number)
        why = worker.ended or f"exit code {exit_code}"
        self.deaths += 1
        done: list[Instruction] = [epitaph(number, worker, exit_code)]
        elsewhere = [id(task) for other in self._workers.values() for task in other.tasks]
        lost = [task for task in worker.tasks if not task.answered and id(task) not in elsewhere]
        for task in lost:
            self._finish(task, worker.took_s(now_s) if task is worker.work[0] else 0.0)
        if lost:
            note = f"the agent's worker died on this or another sample it had ({why})"
            done.append(Read([task.job for task in lost], note))
        for building in reversed(worker.builds):
            if building is worker.work[0] and not worker.ended:
                building.deaths += 1
            done += self._build_again(building, why, ended=bool(worker.ended))
        if self._stopping:
            return done
        if not worker.ready:
            self._early_deaths += 1
            if self._early_deaths >= MAX_EARLY_DEATHS:
                text = (
                    f"workers must start, but {MAX_EARLY_DEATHS} ended at once ({why}); see what they wrote above, and "
                    "whether this host has the memory for them"
                )
                return [*done, GiveUp(text)]
        return [*done, self._start]

    # --- who does what ----------------------------------------------------------------------------------------

    def assign(self, now_s: float) -> list[Instruction]:
        """Give waiting work to the worker with least of it, until all have enough."""
        done: list[Instruction] = []
        while self._builds or self._turns:
            number = self._least_loaded(now_s)
            if number is None:
                break
            if self._builds:
                done += self._have_built(number, self._builds.popleft(), now_s)
            elif (turn := self._turns.pop(after=self._holders(now_s))) is not None:
                client, job = turn
                # As long as all that may be ahead of a worker while nobody knows.
                task = JobAtWorker(job, self._turns.expected(client) or AHEAD_S)
                if task.job.is_outdated(self.per_worker):
                    self._finish(task, 0.0)
                    done.append(Read([task.job]))
                else:
                    done += self._give(number, task, now_s)
            else:  # whoever waits does not read
                break
        if self._stopping and not self.ready_workers and (left := self._turns.take_all()):
            done.append(Read(left, "the agent is stopping"))
        return done

    def relieve(self, now_s: float) -> tuple[list[Instruction], float | None]:
        """See to what has taken too long: give idle workers what waits behind a slow job, answer with files while all
        workers are taken up with others' slow work, end workers that are past their time.

        Returns:
            Orders, and the seconds until there may be more of that to do (None: not before something happens).
        """
        done: list[Instruction] = []
        waits_s: list[float] = []
        idle = any(worker.usable and not worker.work for worker in self._workers.values())
        for number, worker in self._workers.items():
            if not (worker.usable and worker.work):
                continue
            took_s = worker.took_s(now_s)
            limit_s, left_s = self._time_of(worker, now_s)
            waits_s += [left_s, STALLED_S - took_s]
            if took_s < STUCK_S:
                waits_s += [STUCK_S - took_s] if idle and worker.waiting else []
            else:
                for task in worker.waiting:
                    done += self._double(number, task, now_s)
            if left_s <= 0:
                if isinstance(head := worker.work[0], Building):
                    head.deaths += MAX_DEATHS_PER_BUILD
                worker.usable = False
                worker.ended = f"it took more than {limit_s:g} s"
                done.append(EndWorker(number))
        done += self._as_files_meanwhile(now_s)
        if self._none_since_s is not None:
            waits_s.append(self._none_since_s + STALLED_S - now_s)
        return done, min((wait_s for wait_s in waits_s if wait_s > 0), default=None)

    def _time_of(self, worker: Worker, now_s: float) -> tuple[float, float]:
        """How long a worker may take for what it is at, and what is left of that. For a sample it counts from when that
        was sent: slow ones in a row, which nobody has known to be slow, hold a worker up no longer than one."""
        if isinstance(worker.work[0], Building):
            return BUILD_S, BUILD_S - worker.took_s(now_s)
        return self._job_s, self._job_s - (now_s - worker.sent_s[0])

    def _double(self, number: int, task: JobAtWorker, now_s: float) -> list[Instruction]:
        """Give what waits at a worker to an idle one, too; what waits behind stalled work, to any that goes on."""
        if not task.job.fetch.has_programs and task.job.fetch.digest not in self._pipelines:
            return []
        stalled = self._workers[number].took_s(now_s) >= STALLED_S
        others = [
            (len(other.work), one)
            for one, other in self._workers.items()
            if other.usable and other.took_s(now_s) < STALLED_S and (stalled or not other.work)
        ]
        if not others or min(others)[0] > JOBS_PER_WORKER:
            return []
        task.doubled = True
        return self._give(min(others)[1], task, now_s)

    def _holders(self, now_s: float) -> set[bytes]:
        """Clients whose work has taken a worker for long: they get another one when nobody else wants it."""
        return {worker.client for worker in self._workers.values() if worker.took_s(now_s) >= STALLED_S}

    def _as_files_meanwhile(self, now_s: float) -> list[Instruction]:
        """The jobs of all who hold no worker, if every worker is at something slow; everybody's, if none is there."""
        usable = [worker for worker in self._workers.values() if worker.usable]
        if not usable:
            return self._as_files_without_workers(now_s)
        self._none_since_s = None
        if any(worker.took_s(now_s) < STALLED_S for worker in usable):
            return []
        holders = self._holders(now_s)
        jobs = self._turns.take_all(but=holders)
        for task in (task for worker in usable for task in worker.waiting):
            if task.job.fetch.client not in holders:
                self._finish(task, 0.0)
                jobs.append(task.job)
        return [Read(jobs, "all of the agent's workers are busy with slow samples of other loaders")] if jobs else []

    def _as_files_without_workers(self, now_s: float) -> list[Instruction]:
        """To start them takes a third of a minute on a busy host, and whoever waits for it might as well have none."""
        if self._none_since_s is None:
            self._none_since_s = now_s
        if now_s - self._none_since_s < STALLED_S or not (jobs := self._turns.take_all()):
            return []
        return [Read(jobs, "no worker of the agent is ready; they are being started")]

    def _least_loaded(self, now_s: float) -> int | None:
        """The worker for the next job; None when all have enough, or none is there."""
        best, least = None, MAX_JOBS_PER_WORKER
        for number, worker in self._workers.items():
            has = len(worker.work)
            has_room = worker.ahead_s < AHEAD_S or (has < JOBS_PER_WORKER and worker.ahead_s <= STALLED_S)
            if worker.usable and has < least and has_room and worker.took_s(now_s) < STALLED_S:
                best, least = number, has
        return best

    def _have_built(self, number: int, building: Building, now_s: float) -> list[Instruction]:
        worker, build = self._workers[number], building.build
        done = self._teach(number, worker, build.digest, build.registration)
        worker.take(building, now_s)
        return [*done, SendToWorker(number, [message_types.REGISTER, build.digest.encode()])]

    def _give(self, number: int, task: JobAtWorker, now_s: float) -> list[Instruction]:
        if task.job.fetch.has_programs:
            self._workers[number].take(task, now_s)
            return [SendToWorker(number, [message_types.JOB, *task.job.frames()])]
        digest = task.job.fetch.digest
        registration = self._pipelines.get(digest)
        worker = self._workers[number]
        if registration is None and digest not in worker.known:
            self._finish(task, 0.0)
            return [Read([task.job], "the agent has forgotten this pipeline: many others were registered since")]
        worker.take(task, now_s)
        done = self._teach(number, worker, digest, registration)
        done.append(SendToWorker(number, [message_types.JOB, *task.job.frames()]))
        return done

    def _teach(self, number: int, worker: Worker, digest: str, registration: bytes | None) -> list[Instruction]:
        """Send the pipeline if the worker lacks it, and have it forget others if they are too many or too large."""
        if digest in worker.known:
            worker.known.move_to_end(digest)
            return []
        assert registration is not None, "a worker that lacks a pipeline must be sent it"
        worker.known[digest] = len(registration)
        frames: list[Payload] = [message_types.LEARN, digest.encode(), registration]
        done: list[Instruction] = [SendToWorker(number, frames)]
        done += [
            SendToWorker(number, [message_types.TRIED, digest.encode(), one]) for one in self._pipelines.trials(digest)
        ]
        while len(worker.known) > MAX_KNOWN or sum(worker.known.values()) > MAX_KNOWN_NBYTES:
            forgotten, _ = worker.known.popitem(last=False)
            done.append(SendToWorker(number, [message_types.FORGET, forgotten.encode()]))
        return done

    def _build_again(self, building: Building, why: str, *, ended: bool) -> list[Instruction]:
        """Have another worker build it, unless too many have died at it, or one was ended because of it."""
        if building.deaths < MAX_DEATHS_PER_BUILD and not self._stopping:
            self._builds.appendleft(building)
            return []
        build = building.build
        self._admission.finish(build.client)
        who = "the agent's worker was ended" if ended else "two of the agent's workers died"
        text = f"{who} while building this pipeline ({why})"
        return [Refuse(build.client, Failed(Failure.BAD_PIPELINE, text, digest=build.digest))]
