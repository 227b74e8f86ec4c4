"""A small tree, an agent that serves it, and loaders over it, for the modules that need no other ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sophon_loader import OffloadingDataLoader
    from tests.support.loaders import Agent

FILES = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder tree of `FILES` files, in a folder of its own."""
    from tests.support.loaders import make_tree  # imports torch, which not every module needs

    return make_tree(tmp_path_factory.mktemp("all") / "pictures", FILES)


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    """Serves the tree, and the folder above it as `above`."""
    from tests.support.loaders import EXPORT, agent_for

    with agent_for(**{EXPORT: root, "above": root.parent}) as running:
        yield running


@pytest.fixture
def make(root: Path, agent: Agent) -> Iterator[Callable[..., OffloadingDataLoader[Any]]]:
    """Builds loaders over the tree, and closes them at the end."""
    from tests.support.loaders import loaders_of

    with loaders_of(root, agent, batch_size=5) as build:
        yield build
