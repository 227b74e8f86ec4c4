"""A loader whose agents a Ray cluster names: a server that answers as its head does, and real agents."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sophon_loader import OffloadingDataLoader
from tests.support.agents import EXPORT, Agent
from tests.support.pictures import folder
from tests.support.ray_head import Head, actor
from tests.support.replicas import LOADER, SOON
from tests.support.rostered import SAMPLER, Epoch, left, no_warning


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    made = Head()
    yield made
    made.close()


@pytest.fixture
def agents(root: Path) -> Iterator[Callable[[], Agent]]:
    made: list[Agent] = []

    def make() -> Agent:
        made.append(Agent({EXPORT: root}, "--end-with-stdin"))
        return made[-1].ready()

    yield make
    for one in made:
        one.end()


def test_agents_join_and_leave_in_mid_epoch(
    root: Path, head: Head, agents: Callable[[], Agent], caplog: pytest.LogCaptureFixture
) -> None:
    """Then the head answers no more."""
    others = "ray" in sys.modules
    one = agents()
    other_export = actor("tcp://127.0.0.1:9", "another")
    head.answer = head.lists(actor(one.endpoint, EXPORT), other_export)
    loader = OffloadingDataLoader(
        folder(root),
        agent=f"ray://{head.place}/{EXPORT}",
        **{**LOADER, "options": SOON, "policy": "all-off", "sampler": SAMPLER},
    )
    try:
        with no_warning(caplog):
            epoch = Epoch(loader, root)
            epoch.until(lambda: epoch.sent(one) > 0, "the first is used")
            other = agents()
            head.answer = head.lists(actor(one.endpoint, EXPORT), actor(other.endpoint, EXPORT), other_export)
            epoch.until(lambda: epoch.sent(other) > 20, "the other has its share", 15.0)
            head.answer = head.lists(actor(other.endpoint, EXPORT), other_export)
            one.process.terminate()
            epoch.until(lambda: one.endpoint in left(loader), "the first has left", 15.0)
            head.answer = head.says(b"", 500)
            epoch.until(lambda: "it answers 500" in str(loader.report().as_dict()["notes"]), "it is told", 15.0)
            before = epoch.sent(other)
            epoch.until(lambda: epoch.sent(other) > before + 20, "the other goes on")
        assert head.asked[0][1]["Authorization"] == "Bearer secret"
        assert "secret" not in loader.report().as_dict()["summary"] + caplog.text
        assert ("ray" in sys.modules) == others
    finally:
        loader.close()
