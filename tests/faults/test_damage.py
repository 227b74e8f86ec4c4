"""Bits that change on the way: no sample is another one for it, what got lost is asked for again, and it is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import RemoteImageFolder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import MAX_DAMAGED, Connection
from sophon_loader.errors import CorruptMessage
from tests.support.agents import Agent
from tests.support.loaders import QUICK, said, samples_of
from tests.support.pictures import folder, train_transform
from tests.support.relay import SpoiltRelay, Strike

FILES = 32
LOADER = {"batch_size": 4, "policy": "all-off", "seed": 3}
Samples = list[tuple[str, Any]]
without_the_warning = pytest.mark.filterwarnings("ignore:the agent at .* sends nothing usable")


def remote(relay: SpoiltRelay) -> RemoteImageFolder:
    """The same files, for a host that does not have them."""
    return RemoteImageFolder(relay.address("pictures"), transform=train_transform(), options=QUICK)


def struck(loader: Any, relay: SpoiltRelay, what: Strike, count: int, *, to_agent: bool = False) -> Samples:
    """An epoch; before each batch but the first, `count` messages are spoilt."""
    found: Samples = []
    for batch in loader:
        found += samples_of([batch])
        relay.strike(what, count, to_agent)
    return found


@pytest.mark.parametrize(("what", "count", "mounted", "workers"), [
    ("flip", 2, True, 0), ("flip", 2, False, 1), ("flip header", 1, True, 1), ("flip header", 1, False, 0),
])  # fmt: skip
def test_what_comes_damaged_is_asked_for_again(
    root: Path, relay: SpoiltRelay, make: Any, expected: Samples, what: Strike, count: int, mounted: bool, workers: int
) -> None:
    dataset = folder(root) if mounted else remote(relay)
    loader = make(dataset, relay.address("pictures"), num_workers=workers)
    assert struck(loader, relay, what, count) == expected
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"], report["malformed"]) == (FILES, 0, 0)
    assert 1 <= report["corrupt"] <= relay.struck and report["retries"] >= 1


def test_what_reaches_the_agent_damaged_is_asked_for_again(
    root: Path, agent: Agent, relay: SpoiltRelay, make: Any, expected: Samples
) -> None:
    patient = replace(QUICK, dead_after_s=10.0)  # a busy machine may need a second for the answer to what is sent again
    loader = make(folder(root), relay.address("pictures"), options=patient)
    assert struck(loader, relay, "flip", 1, to_agent=True) == expected
    report = loader.report().as_dict()
    assert report["samples"] == FILES and report["corrupt"] >= 1 and report["retries"] >= 1
    assert agent.status()["refusals"]["corrupt"] >= report["corrupt"]


@without_the_warning
def test_a_way_that_damages_everything_is_done_without(
    root: Path, relay: SpoiltRelay, make: Any, expected: Samples
) -> None:
    loader = make(folder(root), relay.address("pictures"))
    assert struck(loader, relay, "flip", 100_000) == expected
    report = loader.report().as_dict()
    assert report["samples"] == FILES and report["fallbacks"] >= FILES / 2 and report["corrupt"] >= 4


def test_a_payload_that_is_damaged_again_and_again_comes_over_another_connection(
    relay: SpoiltRelay, make: Any, expected: Samples
) -> None:
    """Where the files are not here: as the plain file, for which the agent is asked more patiently."""
    loader = make(remote(relay), relay.address("pictures"), batch_size=1)
    batches = iter(loader)
    found = samples_of([next(batches)])
    relay.strike("flip", 5)
    found += samples_of(batches)
    report = loader.report().as_dict()
    assert found == expected
    assert report["corrupt"] == 4 and report["fallbacks"] == report["malformed"] == 0


def test_the_error_where_nothing_arrives_whole(relay: SpoiltRelay, make: Any, expected: Samples) -> None:
    loader = make(remote(relay), relay.address("pictures"))
    batches = iter(loader)
    found = samples_of([next(batches)])
    relay.strike("flip", 100_000)
    with pytest.raises(CorruptMessage) as caught:
        for batch in batches:
            found += samples_of([batch])
    assert found == expected[: len(found)]
    for part in ("must arrive undamaged", "find what changes bytes", "class_", relay.endpoint):
        assert part in said(caught.value)


@pytest.mark.parametrize("to_agent", [True, False], ids=["question", "answer"])
def test_questions_whose_answers_are_damaged(
    root: Path, relay: SpoiltRelay, to_agent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sophon_loader.client.connection.DAMAGED_PAUSE_S", 0.001)
    key = str(next(root.glob("*/*.jpg")).relative_to(root))
    connection = Connection(Address.parse(relay.address("pictures")), window=1)
    try:
        connection.greet(20.0)
        for ask in (
            lambda: connection.sizes([key], 20.0).nbytes[0],
            lambda: len(connection.file(key, 20.0)),
            lambda: len(connection.listing(20.0).tree()) and (root / key).stat().st_size,
        ):
            relay.strike("flip", MAX_DAMAGED, to_agent)
            assert ask() == (root / key).stat().st_size
            relay.strike("flip", 1 + MAX_DAMAGED, to_agent)
            with pytest.raises(CorruptMessage, match="must arrive undamaged, got 6 damaged ones"):
                ask()
    finally:
        connection.close()
