"""Bits that change on the way of an encrypted connection: it is made anew, at either end, and nothing ends but it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadOptions, RemoteImageFolder
from storage_agent.clients.key_files import KeyFolder
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, train_transform
from tests.support.relay import SpoiltRelay, Strike

FILES = 16
LOADER = {"batch_size": 4, "policy": "all-off", "seed": 3}
Samples = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a key that the module's agent lets in."""
    return KeyFolder(tmp_path_factory.mktemp("agent") / "keys").add("gpu")


@pytest.fixture(scope="module")
def agent(root: Path, token: Path) -> Iterator[Agent]:
    """With keys."""
    with agent_for(root, "--keys", str(token.parents[1])) as running:
        yield running


@pytest.fixture
def relay(agent: Agent) -> Iterator[SpoiltRelay]:
    with SpoiltRelay(agent.endpoint, seed=5) as one:
        yield one


@pytest.fixture
def options(token: Path) -> OffloadOptions:
    return OffloadOptions(**{**vars(QUICK), "key": str(token)})


@pytest.mark.parametrize(("what", "to_agent", "mounted"), [
    ("flip", False, True), ("flip", False, False), ("flip", True, True), ("flip size", False, True),
    ("flip size", True, False),
])  # fmt: skip
def test_a_damaged_connection_is_made_anew(
    root: Path, relay: SpoiltRelay, make: Any, options: Any, expected: Samples, what: Strike, to_agent: bool,
    mounted: bool,
) -> None:  # fmt: skip
    """Also if the other end closes it meanwhile, and the loader has something to send."""
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(relay.address("pictures"), transform=train_transform(), options=options)
    loader = make(dataset, relay.address("pictures"), num_workers=1, options=options)
    found: Samples = []
    for batch in loader:
        found += samples_of([batch])
        relay.strike(what, 1, to_agent)
        time.sleep(0.2)
        relay.cut()
        time.sleep(2 * options.heartbeat_s)
    assert found == expected
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"]) == (FILES, 0)
    assert relay.struck
