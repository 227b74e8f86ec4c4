"""Trying an agent again that was given up: how often, with what, and what counts as an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder

from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.fleet.contact import Contact
from sophon_loader.fleet.contacts import share_of
from sophon_loader.fleet.recheck import Recheck
from sophon_loader.fleet.shared_route import SharedRoute
from sophon_loader.host.system import now_s
from sophon_loader.routes import standing
from sophon_loader.routes.standing import Route, Standing
from sophon_loader.settings import Settings
from sophon_loader.wire.frames import pack
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Pong, Register, Registered, Sample
from tests.support.agents import until
from tests.support.pictures import make_tree
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
    monkeypatch.setattr(standing, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(standing, "MAX_PAUSE_S", 0.2)


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


@pytest.fixture
def contact(agreed: Any, tmp_path: Path) -> Iterator[Contact]:
    """With an agent that has agreed, and that workers use."""
    folder = ImageFolder(str(make_tree(tmp_path / "tree", 1, plain=True)))
    one = Contact(
        offloadable(folder), Settings.checked("tcp://127.0.0.1:1/train", "auto", "auto", 1, None, "loader", 0, None)
    )
    one.shared, one._agreement = SharedRoute(1, agreed.terms), agreed
    one._route, one._looks = Route(Standing.READY, now_s()), True
    yield one
    one.leave()


def given_up(contact: Contact) -> SharedRoute:
    assert contact.shared is not None
    contact.shared.note(0, gave_up_s=now_s(), lost_s=0.0)
    return contact.shared


def test_one_that_is_there_is_not_asked(liar: Liar, contact: Contact) -> None:
    for _ in range(3):
        assert not contact.look() and contact._trial is None
    assert not liar.heard


def test_it_is_of_use_once_it_builds_the_pipeline_and_sends_a_file(liar: Liar, contact: Contact) -> None:
    liar.answer = lambda message: framed(well(message))
    shared = given_up(contact)

    def back() -> bool:
        assert not contact.look(), "it was agreed with before"
        return not shared.gone(0)

    until(back, "it is of use again")
    assert {type(one) for one in liar.heard} == {Register, Fetch}
    assert contact._trial is None and contact._route.standing is Standing.BACK


def test_one_that_is_lost_again_is_counted_again(liar: Liar, contact: Contact) -> None:
    liar.answer = lambda message: framed(well(message))
    for times in (1, 2):
        shared = given_up(contact)
        assert share_of(contact).losses == times, "before it is looked at"
        until(lambda: not contact.look() and not contact.is_gone, "it is of use again")
        assert share_of(contact).losses == shared.losses == times


def test_one_that_restarts_during_a_trial_is_asked_again(liar: Liar, agreed: Any, contact: Contact) -> None:
    """What its predecessor had not answered; it was 70 s until the next trial."""
    forgotten: set[type] = set()

    def forgets_the_first(message: Any) -> list[bytes]:
        if type(message) in forgotten:
            return framed(well(message))
        forgotten.add(type(message))
        return []

    liar.answer = forgets_the_first
    agreed.terms = replace(agreed.terms, options=replace(agreed.terms.options, heartbeat_s=50.0, dead_after_s=60.0))
    shared = given_up(contact)

    def looked(condition: Callable[[], bool]) -> bool:
        contact.look()
        return condition()

    for kind in (Register, Fetch):
        until(lambda kind=kind: looked(lambda: kind in forgotten), "it is asked")
        assert isinstance(contact._trial, Recheck)
        contact._trial._connection.renew()
    until(lambda: looked(lambda: not shared.gone(0)), "it is of use again")


@pytest.mark.parametrize("what", ["silent", "busy", "pong", "no pipeline"])
def test_one_that_says_something_else_is_tried_less_and_less_often(liar: Liar, contact: Contact, what: str) -> None:
    answers: dict[str, Any] = {
        "silent": lambda message: [],
        "busy": lambda message: framed(Failed(Failure.BUSY, "for ever", [1] if isinstance(message, Fetch) else [])),
        "pong": lambda message: framed(Pong("i")),
        "no pipeline": lambda message: framed(well(message) if isinstance(message, Fetch) else Pong("i")),
    }
    liar.answer = answers[what]
    shared = given_up(contact)

    def tried(pause_s: float) -> bool:
        contact.look()
        return contact._route._pause_s >= pause_s and any(isinstance(one, Register) for one in liar.heard)

    alive = what in ("pong", "no pipeline")
    until(lambda: tried(0.1 if alive else 0.2), "it is tried again")
    end_s = now_s() + 0.5
    while alive and now_s() < end_s:
        contact.look()
    assert shared.gone(0), "one that lives may have workers that start"
    assert contact._route._pause_s == (0.1 if alive else 0.2)
