"""Loaders over a container of Azure that an agent serves: the samples of the folder, and words at what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import azurite
from tests.support.agents import Agent, agent_for, run_command
from tests.support.azurite import Azurite
from tests.support.far import see_same_samples
from tests.support.pictures import make_tree

FILES = 12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("far") / "train", FILES)


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with azurite.for_tests(tmp_path_factory.mktemp("server")) as running:
        running.container("photos")
        running.put_tree("photos", root.parent)
        yield running


@pytest.fixture
def environment(server: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def agent(environment: None, tmp_path: Path) -> Iterator[Agent]:
    with agent_for({"d": "az://photos/train"}, "--index-folder", str(tmp_path / "indexes")) as running:
        yield running


@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_same_samples(root: Path, agent: Agent, policy: str) -> None:
    see_same_samples(root, agent, policy)


@pytest.mark.parametrize(
    ("location", "variable", "value", "text"),
    [
        ("az://photos/train", "AZURE_STORAGE_ACCOUNT_KEY", "d3Jvbmc=", "403 AuthorizationFailure; set AZURE_STORAGE_"),
        ("az://no-photos", "", "", "404 ContainerNotFound; correct its name; set AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://photos/none", "", "", "got none at az://photos/none; correct the prefix"),
    ],
)
def test_refusals_at_the_start(
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    location: str,
    variable: str,
    value: str,
    text: str,
) -> None:
    if variable:
        monkeypatch.setenv(variable, value)
    done = run_command("serve", "--export", f"d={location}", "--index-folder", str(tmp_path / "indexes"))
    assert done.returncode == 1 and text in done.stderr and azurite.KEY not in done.stderr, done.stderr
