"""Limits of the agent's queue. Who is next: `test_turns.py`."""

from __future__ import annotations

import pytest

from storage_agent.jobs.admission import MAX_NBYTES, Admission


def test_a_client_over_its_limit_is_refused_as_a_whole() -> None:
    admission: Admission[str] = Admission(max_outstanding=3, max_queued=10)
    assert admission.admit(b"a", 2) and not admission.admit(b"a", 2)
    assert admission.outstanding == 2
    assert admission.admit(b"a", 1) and admission.admit(b"b", 3) and not admission.admit(b"b", 1)
    admission.finish(b"a", 2)
    assert admission.admit(b"a", 2) and not admission.admit(b"c", 4)
    assert (admission.outstanding, admission.clients) == (6, 2)


def test_an_empty_request_leaves_no_trace() -> None:
    admission: Admission[str] = Admission(max_outstanding=3, max_queued=10)
    assert admission.admit(b"a", 0) and admission.clients == 0
    admission.finish(b"nobody", 5)
    assert (admission.clients, admission.outstanding, admission.queued) == (0, 0, 0)


@pytest.mark.parametrize("max_queued", [1, 3])
def test_space_ends_at_the_limit_and_comes_back_below(max_queued: int) -> None:
    admission: Admission[int] = Admission(max_outstanding=10, max_queued=max_queued)
    for n in range(max_queued):
        assert admission.space(b"a") == max_queued - n
        admission.turns.push(b"a", n)
    assert admission.space(b"a") == 0
    admission.turns.pop()
    assert admission.space(b"a") == 1


def test_a_full_queue_has_room_for_who_has_little_in_it() -> None:
    admission: Admission[int] = Admission(max_outstanding=100, max_queued=12)
    for n in range(12):
        admission.turns.push(b"large", n)
    assert (admission.space(b"large"), admission.space(b"small")) == (0, 6)
    for n in range(6):
        admission.turns.push(b"small", n)
    assert (admission.space(b"small"), admission.space(b"third")) == (0, 4)


def test_what_a_client_that_has_left_wanted_is_not_done() -> None:
    admission: Admission[int] = Admission(max_outstanding=10, max_queued=10)
    for client in (b"a", b"b"):
        admission.admit(client, 4)
        for n in range(3):
            admission.turns.push(client, n)
    admission.turns.pop()
    admission.forget(b"a")
    assert (admission.queued, admission.outstanding, admission.outstanding_of(b"a")) == (3, 6, 2)
    admission.finish(b"a", 2)
    assert admission.clients == 1 and admission.turns.pop() == (b"b", 0)


def test_what_is_unanswered_takes_a_bounded_memory_in_which_everyone_has_a_share() -> None:
    """It was 2 GiB for each connection: 1024 questions of 2 MiB."""
    admission: Admission[str] = Admission(max_outstanding=1024, max_queued=8)
    question, admitted = 2 << 20, 0
    while admission.admit(b"greedy", 1, question):
        admitted += 1
    assert admitted * question < MAX_NBYTES
    for n in range(10):
        assert admission.admit(b"fair %d" % n, 64, 64 * 100), "a share is there for everyone"
    admission.finish(b"greedy", 2)
    assert admission.admit(b"greedy", 1, question), "what is answered counts no longer"
    for client, count in ((b"greedy", admitted), *((b"fair %d" % n, 64) for n in range(10))):
        admission.finish(client, count)
    assert (admission.outstanding, admission.clients, round(admission._all_nbytes)) == (0, 0, 0)
