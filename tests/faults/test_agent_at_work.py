"""An agent at work on what was asked of it is not given up, however slow it is; one that is stuck is done without.

The loader's time-outs are so short that it would give up a live agent without a sample within 1.5 s.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from sophon_loader import OffloadingDataLoader, OffloadOptions
from tests.support.agent_ops import Gate, waiting
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import samples_of
from tests.support.pictures import folder

FILES = 12
SHORT = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=5.0, resend_after_s=0.5, verify=0.0)
SLOW_S = 5.0
"""Several times as long as the loader waits for an agent that only talks."""
JOB_S = 3.0
BOUND_S = 60.0
"""On the busiest of machines; what is tested takes a few seconds."""
SLOW_START = f"""
import importlib.metadata as metadata, sys, time
real = metadata.version
metadata.version = lambda name: "2.0.0" if name == "torch" else real(name)
if any("forkserver" in one for one in sys.orig_argv):
    time.sleep({SLOW_S})
"""
"""Another torch: no op runs at the agent, so no pipeline is waited for, and samples are requested at once."""


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "gate"
    yield path
    path.touch()  # whatever the test did, nobody waits on


def gated(root: Path, gate: Path, agent: Agent | None) -> OffloadingDataLoader[Any]:
    """A loader all of whose samples wait at the gate, at the agent if there is one."""
    data = ImageFolder(root, v2.Compose([Gate(str(gate)), v2.Resize((16, 16)), v2.PILToTensor()]))
    address = None if agent is None else agent.address()
    return OffloadingDataLoader(data, batch_size=3, agent=address, policy="all-off", seed=3, options=SHORT)


def samples_behind_a_gate(root: Path, gate: Path) -> list[tuple[str, Any]]:
    """What the samples are where nobody has to wait."""
    opened = gate.with_name("opened")
    opened.touch()
    return samples_of(gated(root, opened, None))


def test_an_agent_whose_workers_take_long_to_start_sends_files_meanwhile(root: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SLOW_START)
    expected = samples_of(OffloadingDataLoader(folder(root), batch_size=3, agent=None, seed=3))
    with agent_for(root, "--limit-mbit", "10", modules=tmp_path) as agent:
        loader = OffloadingDataLoader(
            folder(root), batch_size=3, agent=agent.address(), policy="auto", seed=3, options=SHORT
        )
        assert samples_of(loader) == expected
        report = loader.report().as_dict()
        loader.close()
    assert report["fallbacks"] == 0


def test_a_sample_that_takes_long_is_waited_for(root: Path, gate: Path) -> None:
    expected = samples_behind_a_gate(root, gate)
    with agent_for(root, "--ops", "tests.support.agent_ops") as agent:
        loader = gated(root, gate, agent)
        opening = threading.Timer(SLOW_S, gate.touch)
        opening.start()
        assert samples_of(loader) == expected
        opening.join()
        report = loader.report().as_dict()
        deaths = agent.status()["worker_deaths"]
        loader.close()
    assert report["fallbacks"] == 0 and deaths == 0
    assert set(report["cuts"]) != {0}, "the agent ran ops"


def test_a_worker_that_stands_still_is_waited_for_no_longer_than_a_sample_may_take(root: Path, gate: Path) -> None:
    expected = samples_behind_a_gate(root, gate)
    with agent_for(root, "--ops", "tests.support.agent_ops", "--job-seconds", str(JOB_S)) as agent:

        def stop_it() -> None:
            until(lambda: len(waiting(gate)) == 1, "the worker is at a sample")
            os.kill(min(waiting(gate)), signal.SIGSTOP)
            gate.touch()

        loader = gated(root, gate, agent)
        stopping = threading.Thread(target=stop_it)
        stopping.start()
        began_s = time.monotonic()
        assert samples_of(loader) == expected
        took_s = time.monotonic() - began_s
        stopping.join()
        report = loader.report().as_dict()
        deaths = agent.status()["worker_deaths"]
        loader.close()
    assert JOB_S < took_s < BOUND_S
    assert deaths == 1 and report["fallbacks"] == 0 and report["degraded"] > 0
