"""Fairness and limits of the agent's queue, held against a plain model of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage_agent.admission import Admission
from tests.support.drawn import examples

CLIENTS = [b"a", b"b", b"c"]


def test_a_large_request_does_not_starve_a_small_one() -> None:
    admission: Admission[str] = Admission(max_outstanding=1000, max_queued=1000)
    for n in range(500):
        admission.push(b"large", f"large {n}")
    assert admission.pop() == "large 0"
    for client in (b"small", b"other"):
        for n in range(2):
            admission.push(client, f"{client.decode()} {n}")
    served = [admission.pop() for _ in range(7)]
    assert served == ["large 1", "small 0", "other 0", "large 2", "small 1", "other 1", "large 3"]


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
    assert (admission.clients, admission.outstanding, admission.pop()) == (0, 0, None)


@pytest.mark.parametrize("max_queued", [1, 3])
def test_space_ends_at_the_limit_and_comes_back_below(max_queued: int) -> None:
    admission: Admission[int] = Admission(max_outstanding=10, max_queued=max_queued)
    for n in range(max_queued):
        assert admission.space == max_queued - n
        admission.push(b"a", n)
    assert admission.space == 0
    admission.pop()
    assert admission.space == 1


class AgainstModel(RuleBasedStateMachine):
    """The model: a list of (client, job) in order of arrival, and when each client was served last."""

    def __init__(self) -> None:
        super().__init__()
        self.admission: Admission[int] = Admission(max_outstanding=5, max_queued=4)
        self.outstanding: Counter[bytes] = Counter()
        self.waiting: list[tuple[bytes, int]] = []
        self.turns: list[bytes] = []
        self.serial = 0

    @rule(client=st.sampled_from(CLIENTS), samples=st.integers(0, 7))
    def admit(self, client: bytes, samples: int) -> None:
        taken = self.outstanding[client] + samples <= 5
        assert self.admission.admit(client, samples) == taken
        if taken:
            self.outstanding[client] += samples

    @rule(client=st.sampled_from(CLIENTS), samples=st.integers(1, 3))
    def finish(self, client: bytes, samples: int) -> None:
        self.admission.finish(client, samples)
        self.outstanding[client] = max(0, self.outstanding[client] - samples)

    @rule(client=st.sampled_from(CLIENTS))
    def push(self, client: bytes) -> None:
        self.serial += 1
        self.admission.push(client, self.serial)
        self.waiting.append((client, self.serial))
        if client not in self.turns:
            self.turns.append(client)

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        client = self.turns.pop(0)
        oldest = next(job for owner, job in self.waiting if owner == client)
        assert self.admission.pop() == oldest
        self.waiting.remove((client, oldest))
        if any(owner == client for owner, _ in self.waiting):
            self.turns.append(client)

    @precondition(lambda self: not self.waiting)
    @rule()
    def pop_nothing(self) -> None:
        assert self.admission.pop() is None

    @invariant()
    def counts(self) -> None:
        assert self.admission.queued == len(self.waiting)
        assert self.admission.outstanding == sum(self.outstanding.values())
        assert self.admission.clients == sum(n > 0 for n in self.outstanding.values())
        assert self.admission.space == max(0, 4 - len(self.waiting))


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = examples(60, stateful_step_count=40)
