"""Agents that a roster names and nobody reaches, without any that answers."""

from __future__ import annotations

import contextlib
import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.entry import AgentEntry
from tests.support.loaders import samples_of
from tests.support.pictures import folder, make_tree
from tests.support.replicas import LOADER, SOON

NOBODY = "tcp://127.0.0.1:9"


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A roster with one agent, whom nobody reaches."""
    roster = tmp_path / "agents"
    roster.mkdir(mode=0o755)
    (roster / "nobody.json").write_text(AgentEntry([NOBODY], "nobody", ["photos"]).text())
    return roster


class Large:
    """Stands for a tensor of a training function."""


def train(loader: OffloadingDataLoader[Any]) -> weakref.ref[Large]:
    large = Large()
    with contextlib.suppress(AgentUnreachable):
        samples_of(loader)
    return weakref.ref(large)


@pytest.mark.filterwarnings("ignore::sophon_loader.OffloadWarning")
@pytest.mark.parametrize("missing", ["read-here", "raise"])
def test_what_is_kept_of_an_agent_that_nobody_reaches_holds_no_training_function(
    tmp_path: Path, named: Path, missing: Any
) -> None:
    """The loader lives, and still knows why it does without the agent."""
    options = replace(SOON, connect_timeout_s=0.1, agent_missing=missing)
    data = folder(make_tree(tmp_path / "tree", 4))
    loader = OffloadingDataLoader(data, agent=f"file://{named}/photos", options=options, **LOADER)
    try:
        large = train(loader)
        gc.collect()
        assert large() is None
        assert loader._engine is not None and NOBODY in str(loader._engine._contact._error)
    finally:
        loader.close()
