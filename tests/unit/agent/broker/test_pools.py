"""Which of the two pools gets a job, and what becomes of it where there are no op workers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sophon_loader.wire.messages import Registered
from storage_agent.broker.instructions import (
    Build,
    EndWorker,
    GiveUp,
    Instruction,
    Log,
    Read,
    SendToWorker,
    Start,
    Tell,
)
from storage_agent.broker.pools import Pools
from storage_agent.broker.staff import MAX_EARLY_DEATHS, STALLED_S
from storage_agent.jobs.admission import Admission
from storage_agent.jobs.jobs import Job
from storage_agent.jobs.registrations import Registrations
from storage_agent.workers import message_types
from tests.unit.agent.requests import ids, job

PROGRAMS, OPS = 1, 10
"""Numbers of the first worker of each pool."""
BUILD = Build(b"c", "p", b"registration of p")


class Agency:
    """Two pools with one worker for programs, which is ready."""

    def __init__(self, lacking: str = "") -> None:
        self.admission: Admission[Job] = Admission(100, 100)
        registrations = Registrations()
        registrations.keep(b"c", "p", BUILD.registration)
        self.pools = Pools(self.admission, registrations, 30.0, op_workers=2, lacking=lacking)
        self.pools.hired(PROGRAMS, with_ops=False)
        self.pools[PROGRAMS].ready(PROGRAMS)

    def hire_ops(self, *, ready: bool) -> None:
        for number in (OPS, OPS + 1):
            self.pools.hired(number, with_ops=True)
            if ready:
                self.pools[number].ready(number)

    def queue(self, *numbers: int, programs: bool = False) -> list[Instruction]:
        self.admission.admit(b"c", len(numbers))
        jobs = [job(number) for number in numbers]
        header = replace(jobs[0].fetch, has_programs=programs)
        return self.pools.queue([replace(one, fetch=header) for one in jobs], now_s=0.0)

    def build(self) -> list[Instruction]:
        self.admission.admit(b"c", 1)
        return self.pools.build(BUILD, now_s=0.0)


def _sent(done: list[Instruction]) -> list[tuple[int, bytes]]:
    return [(one.worker, bytes(one.frames[0])) for one in done if isinstance(one, SendToWorker)]


@pytest.mark.parametrize("first", ["a job", "a registration"])
def test_op_workers_start_when_they_are_first_needed(first: str) -> None:
    agency = Agency()
    assert _sent(agency.queue(1, programs=True)) == [(PROGRAMS, message_types.JOB)], "a program needs none"
    need = agency.build if first == "a registration" else lambda: agency.queue(2)
    assert need() == [Start(with_ops=True)] * 2
    assert agency.queue(3) == agency.build() == [], "and once only"
    agency.hire_ops(ready=True)
    words = {number for number, word in _sent(agency.pools.assign(0.0)) if word == message_types.REGISTER}
    assert words <= {OPS, OPS + 1} and words


def test_a_full_queue_of_one_pool_holds_up_no_job_of_the_other() -> None:
    agency = Agency()
    agency.queue(*range(50))
    agency.hire_ops(ready=False)
    done = agency.queue(60, 61, programs=True)
    assert _sent(done) == [(PROGRAMS, message_types.JOB)] * 2
    _, wait_s = agency.pools.relieve(0.0)
    assert wait_s is not None and wait_s <= STALLED_S, "files go out while op workers start"
    (read,), _ = agency.pools.relieve(STALLED_S)
    assert isinstance(read, Read) and ids(list(read.jobs)) == list(range(50)) and "being started" in read.note
    assert agency.pools.at_work(b"c") == 2


def test_without_op_workers_pipelines_get_files_and_the_reason() -> None:
    agency = Agency(lacking="--op-workers is 0")
    (read,) = agency.queue(1, 2)
    assert isinstance(read, Read) and ids(list(read.jobs)) == [1, 2] and "(--op-workers is 0)" in read.note
    assert agency.build() == [Tell(b"c", Registered("p", 0))]
    assert agency.admission.outstanding == 2, "the registration has its answer; readers count those of files"
    assert agency.pools.start_ops() == []


@pytest.mark.parametrize("how", ["they end at once", "torch cannot be imported"])
def test_op_workers_that_cannot_start_are_told_of_once(how: str) -> None:
    agency = Agency()
    agency.build()
    agency.queue(1, 2)
    agency.hire_ops(ready=False)
    if how == "torch cannot be imported":
        done = agency.pools.give_ops_up("no libtorch.so")
        assert [one.worker for one in done if isinstance(one, EndWorker)] == [OPS, OPS + 1]
    else:
        done = []
        for number in range(OPS, OPS + MAX_EARLY_DEATHS):
            if number > OPS + 1:
                agency.pools.hired(number, with_ops=True)
            done += agency.pools.died(number, "1", now_s=0.0)
        assert not [one for one in done if isinstance(one, GiveUp)], "the agent goes on"
    assert [one.event for one in done if isinstance(one, Log)][-1] == "no pipeline is run"
    assert [ids(list(one.jobs)) for one in done if isinstance(one, Read)] == [[1, 2]]
    assert Tell(b"c", Registered("p", 0)) in done
    if how == "torch cannot be imported":
        assert [one for number in (OPS, OPS + 1) for one in agency.pools.died(number, "-9", now_s=0.0)] == []
        assert agency.pools.give_ops_up("said by the other worker") == []
    assert isinstance(agency.queue(3)[0], Read) and agency.pools.programs.ready_workers == [PROGRAMS]


def test_a_worker_of_programs_that_cannot_start_ends_the_agent() -> None:
    agency = Agency()
    done: list[Instruction] = []
    for number in range(2, 2 + MAX_EARLY_DEATHS):
        agency.pools.hired(number, with_ops=False)
        done = agency.pools.died(number, "1", now_s=0.0)
    assert isinstance(done[-1], GiveUp)


def test_each_op_worker_that_dies_is_replaced_by_one() -> None:
    agency = Agency()
    agency.queue(1)
    agency.hire_ops(ready=True)
    agency.pools.assign(0.0)
    done = agency.pools.died(OPS, "-9", now_s=0.0)
    assert [one for one in done if isinstance(one, Start)] == [Start(with_ops=True)]
    assert [ids(list(one.jobs)) for one in done if isinstance(one, Read)] == [[1]] and agency.pools.deaths == 1
