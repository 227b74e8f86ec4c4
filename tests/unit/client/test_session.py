"""What a session asks for at prices, and what it counts of the way of replies, over a connection that is none."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.client import session as module
from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Session, Terms
from sophon_loader.client.wanted import BatchId, Wanted
from sophon_loader.encodings.catalogue import ANY_PART, INFO_CLASSES
from sophon_loader.encodings.encoding import Payload
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.messages import CHEAPEST, AskHeaders, Failure, Fetch, Headers, Message, Refused, Sample
from tests.support.clocks import FakeClock
from tests.support.loaders import sample_message

BATCH = BatchId(1, 0, 0)
FIRST = 1
"""The number of the first request."""
TERMS = Terms(
    Address("tcp://127.0.0.1:1", "d"), OffloadOptions(), "i", (b"a", b"b"), (False, True), Seed(9), ("file", "pixels")
)


class ConnectionStandIn:
    """What has been sent, and what comes when; waiting takes as long as the clock says."""

    received_nbytes = 0
    reconnects = 0

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.sent: list[Message] = []
        self.coming: deque[tuple[float, Message]] = deque()

    def send(self, message: Message, payload: bytes | None = None) -> None:
        self.sent.append(message)

    def receive(self, wait_s: float) -> tuple[Message, Payload] | None:
        if not self.coming or self.coming[0][0] > self.clock.now_s + wait_s:
            self.clock.now_s += wait_s
            return None
        at_s, message = self.coming.popleft()
        self.clock.now_s = max(self.clock.now_s, at_s)
        return message, b"payload"

    def arrived_nbytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def connection(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> ConnectionStandIn:
    made = ConnectionStandIn(clock)
    monkeypatch.setattr(module, "Connection", lambda *_: made)
    monkeypatch.setattr(module, "now_s", clock)
    return made


def wanted(sample: int, source: int = 0, **changed: Any) -> Wanted:
    usual: dict[str, Any] = {"cut": 3, "encoding": CHEAPEST, "key": f"{sample}.jpg", "prices": (1.0, 0.5, 0.25)}
    return Wanted(source, sample, **(usual | changed))


def fetches(connection: ConnectionStandIn) -> list[Fetch]:
    return [one for one in connection.sent if isinstance(one, Fetch)]


def answer(number: int, **took: float) -> Sample:
    return replace(sample_message(number), **took)  # type: ignore[arg-type]


# --- prices ---------------------------------------------------------------------------------------------------


def test_prices_go_with_the_samples_that_they_are_for(connection: ConnectionStandIn) -> None:
    session = Session(TERMS)
    files: dict[str, Any] = {"cut": 0, "encoding": "file", "prices": None}
    session.want(BATCH, [wanted(0, **files), wanted(1), wanted(2, **files), wanted(3), wanted(4, source=1, **files)])
    first, second = fetches(connection)
    assert first.prices == [1.0, 0.5, 0.25], "of wire, agent and loader"
    assert [(one.cut, one.encoding) for one in first.items] == [(0, "file"), (3, CHEAPEST)] * 2
    assert (second.prices, second.keep_info, len(second.items)) == ([], True, 1), "another source, and files alone"
    assert INFO_CLASSES not in first.allowed and second.allowed == [*first.allowed, INFO_CLASSES]
    assert ANY_PART in first.allowed


def test_batches_of_different_prices_are_asked_for_apart(connection: ConnectionStandIn) -> None:
    session = Session(TERMS)
    session.keep([BATCH])
    session.want(BATCH, [wanted(0)])
    session.want(BATCH._replace(number=1), [wanted(1, prices=(0.0, 0.0, 1.0))])
    assert [one.prices for one in fetches(connection)] == [[1.0, 0.5, 0.25], [0.0, 0.0, 1.0]]


# --- the way of a reply ---------------------------------------------------------------------------------------


def test_a_reply_that_was_waited_for_shows_how_long_it_was_on_its_way(
    connection: ConnectionStandIn, clock: FakeClock
) -> None:
    session = Session(TERMS)
    assert (session.fresh, session.net_s, session.shortest_net_s) == (0, 0.0, math.inf)
    asked_s = clock.now_s
    session.want(BATCH, [wanted(0), wanted(1)])
    connection.coming += [
        (asked_s + 0.050, answer(FIRST, queued_s=0.010, read_s=0.005, work_s=0.020)),
        (asked_s + 0.080, answer(FIRST + 1, queued_s=0.030, read_s=0.005, work_s=0.020)),
    ]
    session.next(BATCH)
    assert session.fresh == 1 and session.net_s == pytest.approx(0.015)
    session.next(BATCH)
    assert session.fresh == 2 and session.net_s == pytest.approx(0.040)
    assert session.shortest_net_s == pytest.approx(0.015) and session.queued_s == pytest.approx(0.040)
    assert session.waited_s == pytest.approx(0.080)


def test_a_reply_that_lay_there_says_nothing_about_its_way(connection: ConnectionStandIn, clock: FakeClock) -> None:
    """It came some time while this process worked on another."""
    session = Session(TERMS)
    session.want(BATCH, [wanted(0)])
    connection.coming.append((clock.now_s + 0.01, answer(FIRST)))
    clock.now_s += 1.0
    session.next(BATCH)
    assert (session.fresh, session.net_s, session.shortest_net_s, session.waited_s) == (0, 0.0, math.inf, 0.0)


def test_clocks_of_two_hosts_make_no_negative_way(connection: ConnectionStandIn, clock: FakeClock) -> None:
    session = Session(TERMS)
    session.want(BATCH, [wanted(0)])
    connection.coming.append((clock.now_s + 0.01, answer(FIRST, work_s=0.5)))
    session.next(BATCH)
    assert (session.fresh, session.net_s, session.shortest_net_s) == (1, 0.0, 0.0)


def test_a_reply_that_nobody_waits_for_does_not_count(connection: ConnectionStandIn, clock: FakeClock) -> None:
    session = Session(TERMS)
    session.want(BATCH, [wanted(0)])
    connection.coming += [(clock.now_s + 0.01, answer(77)), (clock.now_s + 0.02, answer(FIRST))]
    session.next(BATCH)
    assert session.fresh == 1 and session.net_s == pytest.approx(0.02)


# --- headers of files -----------------------------------------------------------------------------------------


@pytest.fixture
def asking(connection: ConnectionStandIn) -> Session:
    """A session with an agent that is asked by programs; what it learns of samples' headers lies in `learnt`."""
    return Session(replace(TERMS, known=(-1, -1), by_programs=True))


@pytest.fixture
def learnt(asking: Session) -> list[int]:
    found: list[int] = []
    asking.header_questions.told = lambda samples, nbytes, headers: found.extend(samples)
    return found


def headers_for(connection: ConnectionStandIn) -> Headers:
    """The answer to the question that was sent last."""
    question = connection.sent[-1]
    assert isinstance(question, AskHeaders)
    return Headers(question.id, [10 for _ in question.keys], [b"" for _ in question.keys])


def test_late_headers_hold_up_one_batch_and_are_learnt(
    connection: ConnectionStandIn, clock: FakeClock, asking: Session, learnt: list[int]
) -> None:
    """Of a slow disk, or where answers get lost: no epoch in which every batch waits in vain."""
    began_s = clock.now_s
    for sample in range(5):
        asking.ask_headers([wanted(sample)])
        connection.coming.append((clock.now_s + 2.5, headers_for(connection)))
        asking.await_headers(2.0)
        clock.now_s += 1.0
    assert clock.now_s - began_s == pytest.approx(5 * 1.0 + 2.0)
    while asking.hear(0):
        pass
    assert learnt == [0, 1, 2], "those that are there by now"
    asking.ask_headers([wanted(5)])
    connection.coming.clear()
    connection.coming.append((clock.now_s, headers_for(connection)))
    asking.hear(0)
    asking.ask_headers([wanted(6)])
    assert asking.awaits_headers, "the last answer came in time"


def test_headers_that_have_come_are_learnt_where_there_is_no_time_to_wait(
    connection: ConnectionStandIn, clock: FakeClock, asking: Session, learnt: list[int]
) -> None:
    """They lie here while another agent of several is waited for."""
    asking.ask_headers([wanted(3)])
    connection.coming.append((clock.now_s, headers_for(connection)))
    asking.await_headers(0.0)
    assert learnt == [3] and not asking.header_questions.late


def test_an_agent_that_knows_no_programs_is_asked_for_no_headers(
    connection: ConnectionStandIn, clock: FakeClock, asking: Session
) -> None:
    """Behind a balancer, one of an earlier release may answer in the place of the one that was greeted."""
    asking.ask_headers([wanted(0)])
    connection.coming.append((clock.now_s, Refused(Failure.VERSION, "install the same release")))
    asking.await_headers(2.0)
    sent = len(connection.sent)
    asking.ask_headers([wanted(1)])
    assert len(connection.sent) == sent and not asking.takes_programs
