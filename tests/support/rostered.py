"""What the tests of loaders whose agents come and go share."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sophon_loader import OffloadingDataLoader, OffloadWarning
from tests.support.agents import Agent, until
from tests.support.loaders import samples_of
from tests.support.pictures import folder
from tests.support.replicas import LOADER

MakeAgent = Callable[..., Agent]
"""Makes agents that announce themselves."""
FILES = 48
SAMPLER = list(range(FILES)) * 500
"""An epoch that does not end while something is waited for."""


@contextmanager
def no_warning(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OffloadWarning)
        yield
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []


class Listening(NamedTuple):
    """An agent that others have started."""

    endpoint: str


class Epoch:
    """The long one, batch by batch: each sample is what it is without an agent, and none is left out."""

    def __init__(self, loader: OffloadingDataLoader[Any], root: Path) -> None:
        self.loader = loader
        self._plain = iter(OffloadingDataLoader(folder(root), policy="no-off", **LOADER, sampler=SAMPLER))
        self._batches = iter(loader)

    def next(self) -> None:
        assert samples_of([next(self._batches)]) == samples_of([next(self._plain)])

    def until(self, condition: Callable[[], bool], what: str, wait_s: float = 40.0) -> None:
        def met() -> bool:
            self.next()
            return condition()

        until(met, what, wait_s)

    def sent(self, agent: Agent | Listening) -> int:
        found = [one["samples"] for one in self.loader.report().as_dict()["agents"] if agent.endpoint in one["agent"]]
        return int(found[-1]) if found else 0


def left(loader: Any) -> str:
    return "; ".join(note for note in loader.report().as_dict()["notes"] if "has left" in note)
