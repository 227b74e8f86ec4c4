"""What an agent that is killed leaves in the folder for temporary files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents import Agent


def test_sigkill_leaves_no_socket(agent: Callable[..., Agent], tmp_path_factory: pytest.TempPathFactory) -> None:
    temporary = tmp_path_factory.mktemp("t")  # short: the path of a socket has at most 107 bytes

    def folders() -> list[Path]:
        return list(temporary.glob("sophon-agent-*"))

    one = agent(env={**os.environ, "TMPDIR": str(temporary)}).ready()
    assert len(folders()) == 1
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    one.assert_gone()
    assert folders() == []
