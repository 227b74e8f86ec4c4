"""Trying an agent again that was given up: how often, with what, and what counts as an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.host.system import now_s
from sophon_loader.main import revival as module
from sophon_loader.main.revival import Revival
from sophon_loader.routes.shared import SharedRoute
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Pong, Register, Registered, Sample
from tests.support.agents import until
from tests.unit.client.test_answers import Liar


class Agreed:
    """As much of an agreement as a trial needs."""

    class locations:
        @staticmethod
        def key_in_export(index: int) -> str:
            return "a.jpg"

    def __init__(self, terms: Any) -> None:
        self.terms = terms


@pytest.fixture
def liar() -> Iterator[Liar]:
    one = Liar()
    yield one
    one.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(module, "MAX_PAUSE_S", 0.2)


def well(message: Any) -> Message:
    if isinstance(message, Register):
        return Registered(message.digest, 2)
    return Sample(message.items[0].id, 0, "file", {}, 1, [0.0], 0.0, 0.0, "")


def framed(message: Message) -> list[bytes]:
    return [pack(message, b"x"), b"x"] if isinstance(message, Sample) else [pack(message)]


@pytest.fixture
def agreed(liar: Liar) -> Any:
    from tests.unit.workers.test_choosing import terms

    made = terms()
    options = replace(made.options, heartbeat_s=0.2, dead_after_s=0.4)
    return Agreed(replace(made, address=liar.address, options=options))


def test_one_that_is_there_is_not_asked(liar: Liar, agreed: Any) -> None:
    revival = Revival()
    for _ in range(3):
        revival.look(agreed, SharedRoute(1, agreed.terms))
        revival.look(None, SharedRoute(1, agreed.terms))
    assert revival._connection is None


def test_it_is_of_use_once_it_builds_the_pipeline_and_sends_a_file(liar: Liar, agreed: Any) -> None:
    liar.answer = lambda message: framed(well(message))
    route, revival = SharedRoute(1, agreed.terms), Revival()
    route.note(0, gave_up_s=now_s(), lost_s=0.0)

    def back() -> bool:
        revival.look(agreed, route)
        return not route.gone(0)

    until(back, "it is of use again")
    assert {type(one) for one in liar.heard} == {Register, Fetch}
    assert revival._connection is None


def test_one_that_restarts_during_a_trial_is_asked_again(liar: Liar, agreed: Any) -> None:
    """What its predecessor had not answered; it was 70 s until the next trial."""
    forgotten: set[type] = set()

    def forgets_the_first(message: Any) -> list[bytes]:
        if type(message) in forgotten:
            return framed(well(message))
        forgotten.add(type(message))
        return []

    liar.answer = forgets_the_first
    route, revival = SharedRoute(1, agreed.terms), Revival()
    route.note(0, gave_up_s=now_s(), lost_s=0.0)
    agreed.terms = replace(agreed.terms, options=replace(agreed.terms.options, heartbeat_s=50.0, dead_after_s=60.0))

    def looked(condition: Callable[[], bool]) -> bool:
        revival.look(agreed, route)
        return condition()

    for kind in (Register, Fetch):
        until(lambda kind=kind: looked(lambda: kind in forgotten), "it is asked")
        assert revival._connection is not None
        revival._connection.renew()
    until(lambda: looked(lambda: not route.gone(0)), "it is of use again")


@pytest.mark.parametrize("what", ["silent", "busy", "pong", "no pipeline"])
def test_one_that_says_something_else_is_tried_less_and_less_often(liar: Liar, agreed: Any, what: str) -> None:
    answers: dict[str, Any] = {
        "silent": lambda message: [],
        "busy": lambda message: framed(Failed(Failure.BUSY, "for ever", [1] if isinstance(message, Fetch) else [])),
        "pong": lambda message: framed(Pong("i")),
        "no pipeline": lambda message: framed(well(message) if isinstance(message, Fetch) else Pong("i")),
    }
    liar.answer = answers[what]
    route, revival = SharedRoute(1, agreed.terms), Revival()
    route.note(0, gave_up_s=now_s(), lost_s=0.0)

    def tried(pause_s: float) -> bool:
        revival.look(agreed, route)
        return revival._pause_s >= pause_s and any(isinstance(one, Register) for one in liar.heard)

    alive = what in ("pong", "no pipeline")
    until(lambda: tried(0.1 if alive else 0.2), "it is tried again")
    end_s = now_s() + 1.0
    while alive and now_s() < end_s:
        revival.look(agreed, route)
    assert route.gone(0) and revival._pause_s == (0.1 if alive else 0.2), "one that lives may have workers that start"
    revival.close()
