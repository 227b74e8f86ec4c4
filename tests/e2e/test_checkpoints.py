"""`examples/checkpoints.py`: killed in the middle of anything, it goes on to the same weights."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.checkpoints import train
from tests.support.agents import ROOT
from tests.support.loaders import digest_of
from tests.support.warm import run_forked

FILES = 24


def killed(arguments: list[str], at: int) -> None:
    """The run, in a process that ends without a word at that step."""

    def told(step: int, loss: float) -> None:
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(arguments, told)


def weights(model: Any) -> list[str]:
    return [digest_of(one) for one in model.state_dict().values()]


@pytest.mark.timeout(400)
def test_killed_and_gone_on_with(root: Path, agent: Any, tmp_path: Path) -> None:
    def arguments(name: str, *more: str) -> list[str]:
        return [str(root), str(tmp_path / name), "--batch", "4", "--every", "3", "--epochs", "3", *more]

    whole: dict[int, float] = {}
    expected = weights(train(arguments("whole.pt", "--workers", "0"), whole.__setitem__))
    run = arguments("run.pt", "--workers", "1", "--agent", agent.address())
    code = f"from {__name__} import killed; killed({run!r}, 11)"  # in the second epoch of three
    child = run_forked([sys.executable, "-c", code], cwd=ROOT, timeout=300)
    assert child.returncode == -signal.SIGKILL
    rest: dict[int, float] = {}
    assert weights(train(arguments("run.pt", "--workers", "0"), rest.__setitem__)) == expected
    assert rest == {step: loss for step, loss in whole.items() if step >= min(rest)} and 1 < min(rest) <= 10
