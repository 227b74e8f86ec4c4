"""What the loader logs to whoever asks for it, and that nobody else hears of it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.agents import EXPORT, agent_for
from tests.support.loaders import MakeLoader

FILES = 8
LOADER = {"batch_size": 4, "seed": 3, "policy": "resize-off"}


def said(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("sophon_loader."))


def test_an_epoch(make: MakeLoader, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sophon_loader")
    list(make())
    told = said(caplog)
    assert "agent agreed agent=tcp://127.0.0.1:" in told
    assert "plan followed epoch=0 policy=resize-off reason=" in told
    assert f"epoch ended epoch=0 samples={FILES} seconds=" in told


@pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")
def test_an_agent_that_falls_silent_and_comes_back(
    root: Path, make: MakeLoader, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "sophon_loader")
    with agent_for({EXPORT: root}) as agent:
        loader = make(agent=agent.address())
        list(loader)
        assert said(caplog) == ""
        agent.kill()
        list(loader)
        assert said(caplog) == f'agent given up agent={agent.address()} reason="got silence for 1.5 s"'


def test_nobody_hears_who_has_not_asked() -> None:
    """Without a handler, `logging` itself would write warnings to standard error."""
    program = "import logging, sophon_loader; logging.getLogger('sophon_loader.client.session').warning('gone')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""
