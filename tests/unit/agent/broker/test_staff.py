"""Who gets which job, and what becomes of it when its worker dies: no process, no socket, a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sophon_loader.wire.messages import Failed
from storage_agent.broker.instructions import (
    Build,
    EndWorker,
    GiveUp,
    Instruction,
    Log,
    Read,
    Refuse,
    SendToWorker,
    Start,
)
from storage_agent.broker.staff import (
    AHEAD_S,
    BUILD_S,
    JOBS_PER_WORKER,
    MAX_EARLY_DEATHS,
    MAX_JOBS_PER_WORKER,
    MAX_KNOWN,
    STALLED_S,
    STUCK_S,
    Staff,
)
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import SHARED_TRIALS, Registrations
from storage_agent.workers import message_types
from tests.unit.agent.requests import ids, job

JOB_S = 30.0


class Office:
    """A staff, and what its workers have been sent.

    Attributes:
        sent: worker -> the words it was sent, each with the id of its sample or the digest of its pipeline.
    """

    def __init__(self, workers: int = 2, max_queued: int = 100) -> None:
        self.admission: Admission[Job] = Admission(100, max_queued)
        self.pipelines = Registrations()
        self.pipelines.keep(b"loader", "p", b"registration of p")
        self.staff = Staff(self.admission, self.pipelines, JOB_S)
        self.sent: dict[int, list[tuple[bytes, int | str]]] = {}
        self.hired = 0
        for _ in range(workers):
            self.hire()

    def hire(self, ready: bool = True) -> int:
        self.hired += 1
        self.staff.hired(self.hired)
        self.sent[self.hired] = []
        if ready:
            self.staff.ready(self.hired)
        return self.hired

    def carry_out(self, instructions: Iterable[Instruction]) -> list[Instruction]:
        """Note the orders; the other instructions."""
        others: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, SendToWorker):
                word, *frames = instruction.frames
                what = (
                    Job.from_frames(frames[0], frames[1]).item.id
                    if word == message_types.JOB
                    else bytes(frames[0]).decode()
                )
                self.sent[instruction.worker].append((bytes(word), what))
            else:
                others.append(instruction)
        return others

    def queue(
        self,
        *numbers: int,
        client: bytes = b"c",
        digest: str = "p",
        now_s: float = 0.0,
        meant_for: float | None = None,
    ) -> list[Instruction]:
        self.admission.admit(client, len(numbers))
        return self.carry_out(self.staff.queue([job(n, client, digest, meant_for) for n in numbers], now_s=now_s))

    def build(self, digest: str, client: bytes = b"c", now_s: float = 0.0) -> list[Instruction]:
        self.admission.admit(client, 1)
        build = Build(client, digest, b"registration of " + digest.encode())
        return self.carry_out(self.staff.build(build, now_s=now_s))

    def answered(self, number: int, now_s: float = 0.0) -> int | None:
        """The worker answers its oldest job; its id if that answer counts."""
        done = self.staff.answered(number, self.staff._workers[number].took_s(now_s), now_s=now_s)
        self.assign(now_s)
        return None if done is None else done.item.id

    def assign(self, now_s: float = 0.0) -> list[Instruction]:
        return self.carry_out(self.staff.assign(now_s))

    def jobs(self, number: int) -> list[int | str]:
        """Ids of the jobs that a worker has been sent."""
        return [what for word, what in self.sent[number] if word == message_types.JOB]


def _reads(instructions: Iterable[Instruction]) -> list[tuple[list[int], str]]:
    return [(ids(list(one.jobs)), one.note) for one in instructions if isinstance(one, Read)]


def _one(kind: type, instructions: Iterable[Instruction]) -> Instruction:
    (found,) = [one for one in instructions if isinstance(one, kind)]
    return found


# --- who gets which job ---------------------------------------------------------------------------------------


def test_work_goes_to_the_worker_with_least_of_it() -> None:
    office = Office(workers=2)
    assert office.staff.room == 2 * JOBS_PER_WORKER
    office.queue(1, 2, 3, 4, 5, 6)
    assert (office.jobs(1), office.jobs(2)) == ([1, 3], [2, 4]) and office.staff.room == 0
    assert office.admission.queued == 2
    assert office.answered(2) == 2 and office.jobs(2) == [2, 4, 5]
    assert office.answered(1) == 1 and office.jobs(1) == [1, 3, 6]
    assert [office.answered(2), office.answered(2), office.answered(1), office.answered(1)] == [4, 5, 3, 6]


def _jobs_at_once(took_s: float) -> int:
    """How many jobs a worker has once it is known how long one takes."""
    office = Office(workers=1)
    office.queue(*range(100))
    assert len(office.jobs(1)) == JOBS_PER_WORKER, "nobody knows"
    for n in range(1, 9):
        office.answered(1, now_s=n * took_s)
    return len(office.jobs(1)) - 8


@pytest.mark.parametrize(("took_s", "most"), [
    (0.001, MAX_JOBS_PER_WORKER), (AHEAD_S / 4, 4), (0.6 * AHEAD_S, JOBS_PER_WORKER), (1.0, JOBS_PER_WORKER),
    (2 * STALLED_S, 1),
])  # fmt: skip
def test_a_worker_has_several_short_jobs_ahead_and_few_long_ones(took_s: float, most: int) -> None:
    assert abs(_jobs_at_once(took_s) - most) <= (0 if most in (1, JOBS_PER_WORKER, MAX_JOBS_PER_WORKER) else 1)


def test_short_jobs_are_shared_out_evenly() -> None:
    office = Office(workers=2)
    office.queue(0)
    assert office.answered(1, now_s=0.001) == 0
    office.queue(*range(1, 7))
    assert (len(office.jobs(1)), len(office.jobs(2))) == (1 + 3, 3)


def test_little_is_sent_after_a_registration() -> None:
    office = Office(workers=1)
    office.queue(0)
    assert office.answered(1, now_s=0.001) == 0
    office.build("q")
    office.queue(*range(1, 10))
    assert len(office.jobs(1)) == 1 + 1, "a pipeline may take seconds"


def test_what_is_asked_for_again_while_it_waits_or_is_at_work_is_made_once() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4, 5, 6)
    office.queue(1, 5, 6, 7)
    office.queue(5, client=b"another")
    assert (office.admission.queued, office.admission.outstanding_of(b"c")) == (4, 7)
    for number in (1, 2) * 4:
        office.answered(number)
    assert (office.jobs(1), office.jobs(2)) == ([1, 3, 5, 6], [2, 4, 5, 7])  # the second 5 is another client's
    office.queue(1)  # its answer may have got lost
    assert office.jobs(1)[4:] + office.jobs(2)[4:] == [1]


def test_a_worker_that_is_not_ready_or_has_hung_up_gets_nothing() -> None:
    office = Office(workers=1)
    slow = office.hire(ready=False)
    office.staff.left(1)
    office.queue(1, 2)
    assert office.sent == {1: [], slow: []} and office.staff.room == 0 and office.staff.ready_workers == []
    office.staff.ready(slow)
    office.assign()
    assert office.jobs(slow) == [1, 2]


def test_clients_take_turns() -> None:
    office = Office(workers=1)
    office.queue(1, 2, 3, 4)
    office.queue(11, 12, client=b"other")
    served = [office.answered(1) for _ in range(6)]
    assert served == [1, 2, 3, 11, 4, 12], "two had been given before the other came"


def test_a_job_that_was_meant_for_many_more_cores_goes_out_as_its_file() -> None:
    """Worked off as it was meant, what waits would hold the loader up for half a minute."""
    office = Office(workers=1)
    office.queue(1, 2, 3, meant_for=1.0)
    office.queue(4, meant_for=0.02)
    office.queue(5)
    office.queue(6, meant_for=1.0)
    office.staff.per_worker = 0.01
    assert office.jobs(1) == [1, 2], "what a worker has been given stays there"
    office.staff.answered(1, 0.1, now_s=0.1)
    done = office.assign()
    assert _reads(done) == [([3], "")] and office.jobs(1) == [1, 2, 4]
    office.staff.answered(1, 0.1, now_s=0.2)
    assert _reads(office.assign()) == [] and office.jobs(1) == [1, 2, 4, 5]
    office.staff.answered(1, 0.1, now_s=0.3)
    assert _reads(office.assign()) == [([6], "")] and office.admission.queued == 0


def test_pipelines_are_built_before_samples_are_made() -> None:
    office = Office(workers=1)
    office.queue(1, 2, 3)
    office.build("q")
    assert office.staff.building == 1 and office.staff.room == 0
    assert office.answered(1) == 1
    assert (
        office.sent[1][-2:] == [(message_types.LEARN, "q"), (message_types.REGISTER, "q")]
        and office.staff.building == 0
    )
    office.answered(1)
    assert office.staff.built(1, now_s=0.0) == Build(b"c", "q", b"registration of q")


# --- what a worker knows --------------------------------------------------------------------------------------


def test_a_worker_is_sent_a_pipeline_once() -> None:
    office = Office(workers=2)
    office.build("p")
    assert office.sent[1] == [(message_types.LEARN, "p"), (message_types.REGISTER, "p")]
    office.staff.built(1, now_s=0.0)
    office.queue(1, 2, 3, 4)
    assert office.sent[1][2:] == [(message_types.JOB, 1), (message_types.JOB, 3)]
    assert office.sent[2] == [(message_types.LEARN, "p"), (message_types.JOB, 2), (message_types.JOB, 4)]


def test_a_worker_that_replaces_another_knows_nothing() -> None:
    office = Office(workers=1)
    office.queue(1)
    office.carry_out(office.staff.died(1, "-9", now_s=0.0))
    number = office.hire()
    office.queue(2)
    assert office.sent[number] == [(message_types.LEARN, "p"), (message_types.JOB, 2)]


def test_what_a_worker_has_tried_is_told_to_those_that_know_the_pipeline() -> None:
    """And to others as soon as they are sent it; not to the one itself, nor of a pipeline that is forgotten."""
    office = Office(workers=3)
    office.queue(1, 2)
    office.carry_out(office.staff.tried(1, "p", b"trial"))
    assert office.sent[1] == [(message_types.LEARN, "p"), (message_types.JOB, 1)]
    assert (
        office.sent[2] == [(message_types.LEARN, "p"), (message_types.JOB, 2), (message_types.TRIED, "p")]
        and office.sent[3] == []
    )
    office.queue(3)
    assert office.sent[3] == [(message_types.LEARN, "p"), (message_types.TRIED, "p"), (message_types.JOB, 3)]
    office.carry_out(office.staff.tried(1, "forgotten", b"trial"))
    office.carry_out(office.staff.tried(3, "p", b"the next"))
    assert office.sent[1][2:] == office.sent[2][3:] == [(message_types.TRIED, "p")]
    assert office.pipelines.trials("p") == (b"trial", b"the next") and office.pipelines.trials("forgotten") == ()


def test_what_a_worker_has_tried_of_a_program_is_told_to_all_others_that_are_ready() -> None:
    office = Office(workers=3)
    office.staff.left(3)
    office.carry_out(office.staff.tried(1, "RGB shrinks 0", b"trial", of_program=True))
    assert office.sent[2] == [(message_types.TRIED_PROGRAM, "RGB shrinks 0")]
    assert office.sent[1] == office.sent[3] == [] and office.pipelines.trials("RGB shrinks 0") == ()


def test_the_newest_trials_of_a_pipeline_are_kept() -> None:
    office = Office(workers=1)
    for number in range(2 * SHARED_TRIALS):
        office.carry_out(office.staff.tried(1, "p", b"%d" % number))
    assert office.pipelines.trials("p") == tuple(b"%d" % number for number in range(SHARED_TRIALS, 2 * SHARED_TRIALS))


def test_a_doubled_job_takes_its_pipeline_along() -> None:
    office = Office(workers=1)
    office.queue(1, 2)
    idle = office.hire()
    office.carry_out(office.staff.relieve(STUCK_S)[0])
    assert office.sent[idle] == [(message_types.LEARN, "p"), (message_types.JOB, 2)]


def test_a_worker_forgets_what_it_has_not_used_for_longest() -> None:
    office = Office(workers=1)
    digests = [f"{n:02}" for n in range(MAX_KNOWN)]
    for digest in [*digests, digests[0], "one more", "and another"]:
        office.pipelines.keep(b"loader", digest, b"registration")
        office.queue(1, digest=digest)
        office.answered(1)
    said = [(word, what) for word, what in office.sent[1] if word != message_types.JOB]
    assert said[:MAX_KNOWN] == [(message_types.LEARN, digest) for digest in digests]
    assert said[MAX_KNOWN:] == [
        (message_types.LEARN, "one more"),
        (message_types.FORGET, digests[1]),
        (message_types.LEARN, "and another"),
        (message_types.FORGET, digests[2]),
    ]
    office.queue(2, digest=digests[1])
    assert office.sent[1][-3:] == [
        (message_types.LEARN, digests[1]),
        (message_types.FORGET, digests[3]),
        (message_types.JOB, 2),
    ]


def test_a_queued_job_survives_its_pipeline() -> None:
    office = Office(workers=1)
    office.queue(1, 2, 3, 4)
    for n in range(256):  # so many that the agent forgets "p"
        office.pipelines.keep(b"loader", f"{n}", b"registration")
    assert "p" not in office.pipelines
    office.answered(1)
    assert office.jobs(1) == [1, 2, 3], "who knows it still runs it"
    done = office.carry_out(office.staff.died(1, "-9", now_s=0.0))
    assert _reads(done)[0][0] == [2, 3]
    other = office.hire()
    done = office.assign()
    assert _reads(done) == [([4], "the agent has forgotten this pipeline: many others were registered since")]
    assert office.sent[other] == [] and office.admission.queued == 0


# --- doubled jobs ---------------------------------------------------------------------------------------------


def _doubled() -> Office:
    """Worker 1 is slow with job 1; job 2, which waits behind it, has been given to worker 2 as well."""
    office = Office(workers=1)
    office.queue(1, 2)
    office.hire()
    assert office.carry_out(office.staff.relieve(STUCK_S)[0]) == [] and office.jobs(2) == [2]
    return office


def test_what_waits_behind_a_slow_job_is_given_to_an_idle_worker() -> None:
    office = Office(workers=1)
    office.queue(1, 2, now_s=5.0)
    office.hire()
    orders, wait_s = office.staff.relieve(5.0 + STUCK_S / 2)
    assert orders == [] and wait_s == pytest.approx(STUCK_S / 2)
    orders, wait_s = office.staff.relieve(5.0 + 1.1 * STUCK_S)
    office.carry_out(orders)
    assert office.jobs(2) == [2] and wait_s == pytest.approx(STALLED_S - 1.1 * STUCK_S)
    office.hire()
    assert office.staff.relieve(9.0)[0] == [], "once"


def test_all_that_waits_behind_a_slow_job_is_done_elsewhere() -> None:
    office = Office(workers=1)
    office.queue(0)
    assert office.answered(1, now_s=0.001) == 0
    office.queue(1, 2, 3, 4, now_s=0.001)
    idle = office.hire()
    for n in range(3):  # whenever it is idle again
        office.carry_out(office.staff.relieve(0.001 + STUCK_S + n * 0.001)[0])
        assert office.jobs(idle) == list(range(2, 3 + n)) and office.answered(idle, 0.06 + n * 0.001) == 2 + n
    assert [office.answered(1, 0.5) for _ in range(4)] == [1, None, None, None]


def test_nothing_is_doubled_without_an_idle_worker_or_a_slow_job() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4)
    assert office.staff.relieve(0.9)[0] == []
    office = Office(workers=2)
    office.queue(1)
    assert office.staff.relieve(9.0)[0] == [], "nothing waits behind it"


def test_the_clock_of_a_job_starts_when_the_one_before_it_ends() -> None:
    office = Office(workers=1)
    office.queue(1, 2, 3)
    assert office.answered(1, now_s=1.0) == 1
    office.hire()
    orders, wait_s = office.staff.relieve(1.0 + 0.4 * STUCK_S)
    assert orders == [] and wait_s == pytest.approx(0.6 * STUCK_S)


def test_a_doubled_job_is_answered_once_whoever_is_first() -> None:
    office = _doubled()
    assert [office.answered(2), office.answered(1), office.answered(1)] == [2, 1, None]
    office = _doubled()
    assert [office.answered(1), office.answered(1), office.answered(2)] == [1, 2, None]


def test_the_death_of_one_of_two_that_have_a_job() -> None:
    office = _doubled()
    assert _reads(office.staff.died(2, "-9", now_s=0.0)) == [], "the other still has it"
    assert [office.answered(1), office.answered(1)] == [1, 2]
    office = _doubled()
    assert [numbers for numbers, _ in _reads(office.staff.died(1, "-9", now_s=0.0))] == [[1]]
    assert office.answered(2) == 2


def test_the_death_of_both_that_have_a_job() -> None:
    office = _doubled()
    office.staff.died(2, "-9", now_s=0.0)
    assert [numbers for numbers, _ in _reads(office.staff.died(1, "-9", now_s=0.0))] == [[1, 2]]


def test_a_death_after_the_other_was_faster() -> None:
    office = _doubled()
    assert office.answered(2) == 2
    assert [numbers for numbers, _ in _reads(office.staff.died(1, "-9", now_s=0.0))] == [[1]]


# --- slow work ------------------------------------------------------------------------------------------------


def test_a_job_past_its_time_ends_its_worker_and_goes_out_as_its_file() -> None:
    office = Office(workers=1)
    office.queue(1, 2)
    orders, wait_s = office.staff.relieve(JOB_S - 0.5)
    assert orders == [] and wait_s == pytest.approx(0.5)
    assert office.staff.relieve(JOB_S)[0] == [EndWorker(1)] and office.staff.ready_workers == []
    done = office.carry_out(office.staff.died(1, "-9", now_s=JOB_S + 0.1))
    assert _reads(done) == [
        ([1, 2], "the agent's worker died on this or another sample it had (it took more than 30 s)")
    ]
    assert _one(Log, done).details["reason"] == "it took more than 30 s" and _one(Start, done)


def test_slow_samples_that_were_taken_for_short_ones_hold_a_worker_up_no_longer_than_one() -> None:
    """Another client's samples are short, so a new one's were sent eight at a time."""
    office = Office(workers=1)
    office.queue(0, client=b"other")
    assert office.answered(1, now_s=0.001) == 0
    office.queue(*range(1, 9), now_s=1.0)
    assert office.jobs(1) == list(range(9))
    assert office.answered(1, now_s=1.0 + 0.8 * JOB_S) == 1
    office.build("q", now_s=1.0 + 0.8 * JOB_S)
    assert office.staff.relieve(0.9 + JOB_S)[0] == []
    assert office.staff.relieve(1.0 + JOB_S)[0] == [EndWorker(1)]
    done = office.carry_out(office.staff.died(1, "-9", now_s=1.0 + JOB_S))
    assert [numbers for numbers, _ in _reads(done)] == [list(range(2, 9))]
    number = office.hire()
    office.assign(1.0 + JOB_S)
    assert office.sent[number] == [(message_types.LEARN, "q"), (message_types.REGISTER, "q")]


def test_a_pipeline_has_its_time_from_when_it_is_begun() -> None:
    office = Office(workers=1)
    office.queue(1)
    office.build("q")
    assert office.answered(1, now_s=0.9 * BUILD_S) == 1
    assert office.staff.relieve(1.8 * BUILD_S)[0] == []
    assert office.staff.relieve(1.9 * BUILD_S)[0] == [EndWorker(1)]


def test_a_pipeline_behind_a_sample_past_its_time_is_built_though_that_was_answered_at_the_last_moment() -> None:
    office = Office(workers=1)
    office.queue(1)
    office.build("q")
    assert office.staff.relieve(JOB_S)[0] == [EndWorker(1)]
    assert office.answered(1, now_s=JOB_S) == 1
    assert not [one for one in office.staff.died(1, "-9", now_s=JOB_S) if isinstance(one, Refuse)]
    assert office.staff.building == 1


def test_a_pipeline_past_its_time_is_refused_at_once() -> None:
    office = Office(workers=1)
    office.build("q")
    assert office.staff.relieve(BUILD_S)[0] == [EndWorker(1)]
    done = office.carry_out(office.staff.died(1, "-9", now_s=BUILD_S))
    text = "the agent's worker was ended while building this pipeline (it took more than 20 s)"
    assert _one(Refuse, done) == Refuse(b"c", Failed("bad-pipeline", text, digest="q"))
    assert office.staff.building == 0 and office.admission.outstanding == 0


def test_nothing_is_sent_after_slow_work() -> None:
    office = Office(workers=2)
    office.queue(1)
    office.queue(2, 3, 4, client=b"quick", now_s=STALLED_S)
    assert (office.jobs(1), office.jobs(2)) == ([1], [2, 3])


def test_what_waits_behind_slow_work_is_taken_over_by_a_worker_that_goes_on() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4)
    office.answered(2, now_s=0.9)
    office.queue(5, now_s=0.9)
    assert (office.jobs(1), office.jobs(2)) == ([1, 3], [2, 4, 5])
    assert office.carry_out(office.staff.relieve(1.1)[0]) == []
    assert office.jobs(2) == [2, 4, 5, 3]


def test_while_all_workers_do_slow_work_of_one_client_the_others_get_files() -> None:
    office = Office(workers=2)
    office.queue(1, 2)
    office.queue(11, 12, 13, client=b"other", now_s=0.1)
    assert (office.jobs(1), office.jobs(2)) == ([1, 11], [2, 12])
    assert office.staff.relieve(0.9)[0] == []
    done, _ = office.staff.relieve(1.2)
    note = "all of the agent's workers are busy with slow samples of other loaders"
    assert _reads(done) == [([13, 11, 12], note)] and office.admission.queued == 0
    office.queue(3)
    assert _reads(office.staff.relieve(2.0)[0]) == [], "whose work is slow waits for it"
    assert [office.answered(1, now_s=5.0), office.answered(1, now_s=5.1)] == [1, None], "it has been answered"


def test_without_a_worker_what_waits_goes_out_as_files() -> None:
    office = Office(workers=0)
    starting = office.hire(ready=False)
    office.staff.queue([job(1)], now_s=0.0)
    done, wait_s = office.staff.relieve(now_s=0.0)
    assert not done and wait_s == pytest.approx(STALLED_S)
    (read,), _ = office.staff.relieve(now_s=STALLED_S)
    assert isinstance(read, Read) and ids(read.jobs) == [1] and "no worker of the agent is ready" in read.note
    office.staff.ready(starting)
    office.staff.relieve(now_s=2.0)
    assert (
        not office.carry_out(office.staff.queue([job(2)], now_s=2.0))
        and (message_types.JOB, 2) in office.sent[starting]
    )


def test_a_client_is_told_what_of_its_own_is_at_work() -> None:
    office = Office(workers=1)
    assert office.staff.at_work(b"c") == 0
    office.carry_out(office.staff.queue([job(n) for n in range(5)], now_s=0.0))
    assert office.staff.at_work(b"c") == 5 and office.staff.at_work(b"other") == 0
    office.staff.answered(1, 0.1, now_s=0.1)
    assert office.staff.at_work(b"c") == 4
    office.staff.left(1)
    assert office.staff.at_work(b"c") == 0, "nobody is there to do it"


def test_who_has_slow_work_gets_another_worker_when_nobody_else_wants_it() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4, 5)
    office.answered(2, now_s=1.5)
    office.answered(2, now_s=1.5)
    assert office.jobs(1) == [1, 3]
    office.queue(11, 12, client=b"other", now_s=1.6)
    office.answered(2, now_s=1.7)
    assert office.jobs(2)[:4] == [2, 4, 5, 11], "the other comes first"


def test_turns_are_by_seconds_at_workers() -> None:
    """One client's samples take ten times as long: in the long run, each has half of the worker."""
    office = Office(workers=1, max_queued=1000)
    office.admission.max_outstanding = 1000
    office.queue(*range(100), client=b"slow")
    office.queue(*range(100, 600), client=b"quick")
    now_s, had = 0.0, {True: 0.0, False: 0.0}
    while now_s < 3.0:
        slow = office.jobs(1)[-1 if len(office.staff._workers[1].work) == 1 else -2] < 100  # type: ignore[operator]
        now_s += 0.1 if slow else 0.01
        had[slow] += 0.1 if slow else 0.01
        assert office.answered(1, now_s=now_s) is not None
    assert had[True] == pytest.approx(had[False], abs=0.4)


# --- deaths ---------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_with_two_jobs() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4, 5)
    done = office.staff.died(1, "-9", now_s=0.0)
    assert _reads(done) == [([1, 3], "the agent's worker died on this or another sample it had (exit code -9)")]
    assert _one(Start, done) == Start() and office.staff.deaths == 1
    assert _one(Log, done) == Log(
        "worker died", warning=True, details={"worker": 1, "exit_code": "-9", "samples": ["d/1.jpg", "d/3.jpg"]}
    )
    number = office.hire()
    office.assign()
    assert office.jobs(number) == [5] and office.staff.ready_workers == [2, number]


def test_a_worker_that_dies_while_it_builds() -> None:
    office = Office(workers=1)
    office.build("q")
    done = office.carry_out(office.staff.died(1, "1", now_s=0.0))
    assert _one(Log, done).details == {"worker": 1, "exit_code": "1", "pipelines": ["q"]}
    assert not [one for one in done if isinstance(one, Refuse)]
    number = office.hire()
    office.assign()
    assert office.sent[number] == [(message_types.LEARN, "q"), (message_types.REGISTER, "q")]
    assert office.staff.built(number, now_s=0.0).client == b"c" and office.admission.outstanding == 1, (
        "the broker counts answers"
    )


def test_two_deaths_of_one_registration() -> None:
    office = Office(workers=1)
    office.build("q")
    office.carry_out(office.staff.died(1, "1", now_s=0.0))
    office.hire()
    office.assign()
    done = office.carry_out(office.staff.died(2, "-9", now_s=0.0))
    text = "two of the agent's workers died while building this pipeline (exit code -9)"
    assert _one(Refuse, done) == Refuse(b"c", Failed("bad-pipeline", text, digest="q"))
    assert office.admission.outstanding == 0 and office.staff.building == 0
    assert _one(Start, done) == Start(), "the worker is replaced all the same"


def test_a_registration_that_only_waited_at_workers_that_died_is_built() -> None:
    """Somebody kills both: neither died of it."""
    office = Office(workers=2)
    office.queue(1, 2)
    office.build("q")
    assert office.sent[1][1:] == [(message_types.JOB, 1), (message_types.LEARN, "q"), (message_types.REGISTER, "q")]
    office.carry_out(office.staff.died(1, "-9", now_s=0.0))
    office.assign()
    assert office.sent[2][1:] == [(message_types.JOB, 2), (message_types.LEARN, "q"), (message_types.REGISTER, "q")]
    done = office.carry_out(office.staff.died(2, "-9", now_s=0.0))
    assert not [one for one in done if isinstance(one, Refuse)] and office.staff.building == 1


def test_registrations_keep_their_order_when_a_worker_dies() -> None:
    office = Office(workers=1)
    for digest in ("q", "r", "s"):
        office.build(digest)
    office.carry_out(office.staff.died(1, "-9", now_s=0.0))
    number = office.hire()
    office.assign()
    assert [what for word, what in office.sent[number] if word == message_types.REGISTER] == ["q", "r"]


def test_workers_that_end_before_they_are_ready() -> None:
    office = Office(workers=0)
    for n in range(1, MAX_EARLY_DEATHS):
        done = office.staff.died(office.hire(ready=False), f"{n}", now_s=0.0)
        assert _one(Start, done) == Start()
    done = office.staff.died(office.hire(ready=False), "77", now_s=0.0)
    assert _one(GiveUp, done).reason.startswith("workers must start, but 3 ended at once (exit code 77); ")
    assert not [one for one in done if isinstance(one, Start)]


def test_a_worker_that_is_ready_ends_the_row_of_early_deaths() -> None:
    office = Office(workers=0)
    for _ in range(3):
        for _ in range(MAX_EARLY_DEATHS - 1):
            assert _one(Start, office.staff.died(office.hire(ready=False), "1", now_s=0.0))
        office.hire()
    assert _one(Start, office.staff.died(office.hired, "1", now_s=0.0)), "and later deaths are not early ones"


# --- stopping -------------------------------------------------------------------------------------------------


def test_nobody_is_replaced_when_the_agent_stops() -> None:
    office = Office(workers=2)
    office.queue(1, 2, 3, 4, 5)
    office.build("q")
    office.staff.stop()
    done = office.staff.died(1, "0", now_s=0.0)
    assert not [one for one in done if isinstance(one, Start)] and [n for n, _ in _reads(done)] == [[1, 3]]
    office.assign()
    assert office.answered(2) == 2 and office.sent[2][-1] == (message_types.REGISTER, "q"), "what was taken is done"


def test_what_waits_goes_out_as_files_when_no_worker_is_left() -> None:
    office = Office(workers=1)
    office.queue(1, 2, 3, 4)
    office.queue(11, client=b"other")
    office.staff.stop()
    office.carry_out(office.staff.died(1, "0", now_s=0.0))
    assert _reads(office.assign()) == [([3, 4, 11], "the agent is stopping")] and office.admission.queued == 0


def test_a_pipeline_is_not_built_again_when_the_agent_stops() -> None:
    office = Office(workers=1)
    office.build("q")
    office.staff.stop()
    assert _one(Refuse, office.staff.died(1, "0", now_s=0.0))


def test_early_deaths_do_not_matter_when_the_agent_stops() -> None:
    office = Office(workers=0)
    numbers = [office.hire(ready=False) for _ in range(MAX_EARLY_DEATHS)]
    office.staff.stop()
    for number in numbers:
        assert [type(one) for one in office.staff.died(number, "-15", now_s=0.0)] == [Log]
