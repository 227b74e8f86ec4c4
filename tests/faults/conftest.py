"""What the tests of faults share: what must come, and a relay to the module's agent that spoils what passes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import Agent
from tests.support.relay import SpoiltRelay


@pytest.fixture(scope="module")
def expected(request: pytest.FixtureRequest, root: Path) -> list[tuple[str, Any]]:
    """An epoch of `root` as a loader without an agent gives it, with the module's `LOADER`."""
    from sophon_loader import OffloadingDataLoader  # imports torch, which not every module of this folder does
    from tests.support.loaders import run_epoch
    from tests.support.pictures import folder

    return run_epoch(OffloadingDataLoader(folder(root), **{**request.module.LOADER, "policy": "no-off"}))


@pytest.fixture
def relay(agent: Agent) -> Iterator[SpoiltRelay]:
    with SpoiltRelay(agent.ready().endpoint, seed=5) as one:
        yield one
