"""Loaders over a bucket of a server of another make, which answers ranges with whole objects, and which goes away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sophon_loader import RemoteImageFolder
from tests.support import rclone
from tests.support.agents import Agent, agent_for
from tests.support.far import see_same_samples
from tests.support.pictures import make_tree
from tests.support.rclone import Rclone

FILES = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("buckets") / "photos", FILES)


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Rclone]:
    with rclone.for_tests(root.parent) as running:
        yield running


@pytest.fixture(scope="module")
def agent(server: Rclone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    indexes = tmp_path_factory.mktemp("indexes")
    indexes.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        with agent_for({"d": "s3://photos"}, "--index-folder", str(indexes)) as running:
            yield running


@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_same_samples(root: Path, agent: Agent, policy: str) -> None:
    see_same_samples(root, agent, policy)


def test_a_store_that_goes_and_comes_back(agent: Agent, server: Rclone) -> None:
    """It is waited for; see `test_far_outages.py` for how long."""
    remote = RemoteImageFolder(agent.address("d"))
    expected = [remote[0], remote[1]]
    for number, gone_s in enumerate((2.0, 12.0)):
        server.stop()
        back = threading.Timer(gone_s, server.start)
        back.start()
        assert remote[number] == expected[number]
        back.join()
    assert agent.alive()
