"""Settings of every test, and what tests of a running agent share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.support.agents import Agent

# No deadline: on a busy machine the first call of an op takes many times as long as the second.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


# Started in the background by a shell, this process ignores Ctrl-C, and so would the programs that tests send one to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of some 40 files: several sizes, grey, progressive, PNG, nested."""
    from tests.support.loaders import make_tree  # imports torch, which most tests can do without

    return make_tree(tmp_path_factory.mktemp("images"), files=40)


@pytest.fixture(scope="module")
def agent(image_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Agent]]:
    """Starts an agent of `image_tree` with more arguments; all of them end with the module."""
    from tests.support.agents import Agent

    started: list[Agent] = []

    def start(*arguments: str, **more: object) -> Agent:
        log = tmp_path_factory.mktemp("agent") / "stderr"
        started.append(Agent(image_tree, log, *arguments, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.end()
