"""Agents that have no op workers, lose theirs or cannot start them: samples stay the same, each comes once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sophon_loader.pipeline.software import software
from tests.e2e.test_other_agent import modules, needs_crop
from tests.faults.test_asking_by_programs import LOADER, Samples, again, crossed_smaller
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import samples_of

FILES = 32
POLICIES = ["all-off", "fastflow"]
BROKEN = 'import sys\nsys.modules["storage_agent.workers.answering"] = None\n'
"""Op workers cannot import what they run."""
DEADLY = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "storage_agent.workers.answering":
            os._exit(3)
sys.meta_path.insert(0, Finder())
"""
"""The process ends that imports what op workers run, as one does whose torch was built for another CPU."""
__all__ = ["LOADER"]


@pytest.fixture(scope="module")
def without(root: Path) -> Iterator[Agent]:
    """An agent that starts no op workers."""
    with agent_for(root, "--op-workers", "0") as running:
        yield running.ready()


@needs_crop
@pytest.mark.parametrize("policy", POLICIES)
def test_an_agent_without_op_workers(without: Agent, make: Any, expected: Samples, policy: str) -> None:
    loader = make(None, without.address(), policy=policy)
    for _ in range(2):
        assert again(loader) == expected
    report = loader.report().as_dict()
    assert report["fallbacks"] == report["degraded"] == 0
    said = "\n".join(report["notes"])
    assert f"torch {software()['torch']} here and unused there" in said and "no op behind the last crop" in said
    if policy == "all-off":
        assert crossed_smaller(loader) == FILES
    status = without.status()
    assert status["op_worker_pids"] == [] and status["op_workers_lacking"] == "--op-workers is 0"
    assert status["pipelines"] == 0 and status["refusals"] == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_op_workers_and_their_parent_that_are_killed(root: Path, make: Any, expected: Samples, policy: str) -> None:
    with agent_for(root) as mortal:
        loader = make(None, mortal.address(), policy=policy)
        batches = iter(loader)
        found = samples_of([next(batches)])
        before = mortal.status()
        (pid,) = before["op_worker_pids"]
        for process in (psutil.Process(pid).parent(), psutil.Process(pid)):
            assert process is not None and process.pid != mortal.pid
            process.kill()
        assert found + samples_of(batches) == expected
        until(lambda: mortal.status()["op_workers"] == 1, "the op worker is replaced")
        assert again(loader) == expected and loader.report().as_dict()["fallbacks"] == 0
        after = mortal.status()
        assert after["worker_pids"] == before["worker_pids"], "workers of programs have another parent"
        assert after["worker_deaths"] >= 1 and after["op_worker_pids"] != [pid] and after["op_workers_lacking"] == ""


@needs_crop
@pytest.mark.parametrize(("policy", "how"), [("all-off", BROKEN), ("fastflow", DEADLY)], ids=["broken", "deadly"])
def test_op_workers_that_cannot_start(
    root: Path, tmp_path: Path, make: Any, expected: Samples, policy: str, how: str
) -> None:
    log = tmp_path / "log"
    one = Agent({"pictures": root}, "--end-with-stdin", workers=2, modules=modules(tmp_path, how), log=log)
    try:
        loader = make(None, one.address(), policy=policy)
        assert again(loader) == expected and again(loader) == expected
        report = loader.report().as_dict()
        assert report["fallbacks"] == report["degraded"] == 0
        assert any("the agent runs no named ops" in note and "sophon-agent status" in note for note in report["notes"])
        if policy == "all-off":
            assert crossed_smaller(loader) == FILES, "by programs"
        later = make(None, one.address(), policy=policy)
        assert again(later) == expected
        assert any("unused there" in note for note in later.report().as_dict()["notes"])
        assert one.status()["op_workers_lacking"] and one.status()["workers"] == 2
        assert one.errors().count("no pipeline is run") == 1
    finally:
        one.end()


@pytest.mark.parametrize("policy", POLICIES)
def test_op_workers_that_are_lost_for_good_in_mid_epoch(
    root: Path, tmp_path: Path, make: Any, expected: Samples, policy: str
) -> None:
    """What was a good installation when they started is a broken one when they are started again."""
    folder = modules(tmp_path, f"import os\nif os.path.exists({str(tmp_path / 'gone')!r}):\n    exec({DEADLY!r})\n")
    with agent_for(root, modules=folder) as mortal:
        loader = make(None, mortal.address(), policy=policy)
        batches = iter(loader)
        found = samples_of([next(batches)])
        (tmp_path / "gone").touch()
        (pid,) = mortal.status()["op_worker_pids"]
        for process in (psutil.Process(pid).parent(), psutil.Process(pid)):
            assert process is not None
            process.kill()
        assert found + samples_of(batches) == expected
        until(lambda: mortal.status()["op_workers_lacking"], "they are given up")
        assert again(loader) == expected and loader.report().as_dict()["fallbacks"] == 0
        assert mortal.status()["workers"] == 1
