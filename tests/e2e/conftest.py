"""What the tests of whole loaders share: agents of the loader's own that need not import torch again,
and a folder in which agents announce themselves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sophon_loader.client import local_agent
from tests.support.agents import EXPORT, Agent, until
from tests.support.rostered import MakeAgent
from tests.support.warm import Forked


@pytest.fixture(scope="session", autouse=True)
def warm_local_agents() -> Iterator[None]:
    """Unless a test asks for `new_interpreters`."""
    with pytest.MonkeyPatch.context() as patch:
        how = SimpleNamespace(Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired)
        patch.setattr(local_agent, "subprocess", how)
        yield


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    made = tmp_path / "agents"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def announced(root: Path, roster: Path) -> Iterator[MakeAgent]:
    """Makes agents that announce themselves, and waits until they have."""
    made: list[Agent] = []

    def make(exports: Path = root, *arguments: str) -> Agent:
        agent = Agent({EXPORT: exports}, "--end-with-stdin", "--announce", str(roster), *arguments)
        made.append(agent)
        port = agent.endpoint.rpartition(":")[2]
        until(lambda: any(port in path.name for path in roster.glob("*.json")), "it is announced")
        return agent.ready()

    yield make
    for agent in made:
        agent.end()
