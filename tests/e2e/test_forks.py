"""A forked child and its parent: each iterates its own copy of a loader, and takes or ends nothing of the other's."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import TensorDataset

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from tests.support.agents import ROOT, until
from tests.support.loaders import LOCAL, MakeLoader, samples_of
from tests.support.warm import Forked

FILES = 12
LOADER = {"batch_size": 4, "seed": 7, "policy": "auto"}
CHILD_S = 60.0
"""A child that has said nothing for so long waits for ever."""
BATCHES = 3


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Threads of torch's own in this process, for which a forked child that copies with them waits in vain."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.ones(1 << 20).add_(1)
    yield
    torch.set_num_threads(before)


def in_child(act: Callable[[], Any]) -> Any:
    """What `act` gives in a forked child."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send(act()))
    child.start()
    try:
        assert ours.poll(CHILD_S), f"a forked child must answer within {CHILD_S:g} s"
        return ours.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(
    ("where", "workers", "persistent", "begun"),
    [
        *((None, *shape) for shape in product((0,), (False,), (False, True))),
        *((None, *shape) for shape in product((2,), (False, True), (False, True))),
        ("", 0, False, True),
        ("", 2, True, True),
        (LOCAL, 0, False, True),
    ],
)
def test_both_iterate(
    make: MakeLoader, where: Any, workers: int, persistent: bool, begun: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    shape: dict[str, Any] = {"agent": where, "num_workers": workers, "persistent_workers": persistent}
    if where is not None:
        shape["policy"] = "all-off"
    with contextlib.closing(make(**{**shape, "agent": None})) as alone:
        first, second = samples_of(alone), samples_of(alone)
    loader = make(**shape)
    if not begun:
        assert in_child(lambda: samples_of(loader)) == first
        assert samples_of(loader) == first
    else:
        batches = iter(loader)
        got = samples_of([next(batches)])
        assert in_child(lambda: samples_of(loader)) == second
        assert got + samples_of(batches) == first
        assert len(first) == FILES
    assert samples_of(loader) == second
    assert "can only test a child" not in capfd.readouterr().err


@pytest.mark.parametrize("persistent", [False, True])
def test_both_iterate_over_what_cannot_be_offloaded(persistent: bool) -> None:
    shape: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    loader = OffloadingDataLoader(TensorDataset(torch.arange(12)), batch_size=4, **shape)
    batches = iter(loader)
    next(batches)
    assert in_child(lambda: len(list(loader))) == BATCHES
    assert len(list(batches)) == BATCHES - 1
    assert len(list(loader)) == BATCHES
    loader.close()


def test_a_parents_iterator_over_workers_is_refused(make: MakeLoader) -> None:
    batches = iter(make(agent=None, num_workers=2))
    next(batches)

    def go_on() -> str:
        with pytest.raises(ConfigError, match="must be read in the process that began it") as caught:
            next(batches)
        return str(caught.value)

    assert f"({os.getpid()}), got process" in in_child(go_on)
    assert len(list(batches)) == BATCHES - 1


@pytest.mark.parametrize("where", [None, ""])
def test_a_parents_iterator_without_workers_goes_on(make: MakeLoader, where: str | None) -> None:
    batches = iter(make(agent=where))
    next(batches)
    rest = in_child(lambda: samples_of(batches))
    assert samples_of(batches) == rest != []


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_child_that_drops_all_ends_nothing(
    make: MakeLoader, persistent: bool, plain: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    shape: dict[str, Any] = {"num_workers": 2, "persistent_workers": persistent}
    dataset = TensorDataset(torch.arange(12)) if plain else None
    held: list[Any] = [make(dataset, agent=None, batch_size=4, **shape)]
    held.append(iter(held[0]))
    next(held[1])

    def drop() -> bool:
        held[0].close()
        held.clear()
        return gc.collect() >= 0

    assert in_child(drop)
    assert len(list(held[1])) == BATCHES - 1
    assert "Exception ignored" not in capfd.readouterr().err


ORPHAN = """
import os, sys, time
from sophon_loader import LocalAgent, OffloadingDataLoader
from tests.support.pictures import folder

loader = OffloadingDataLoader(folder(sys.argv[1]), agent=LocalAgent(workers=1), policy="all-off")
next(iter(loader))
agent = loader._engine._contact.agent._process.pid
child = os.fork()
if not child:
    time.sleep(600)
print(agent, child, flush=True)
time.sleep(600)
"""


def test_an_agent_ends_with_the_process_that_started_it(root: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, str(root)]
    with Forked(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        agent, child = map(int, parent.stdout.readline().split())
        parent.kill()
        parent.wait()
        try:
            until(lambda: not psutil.pid_exists(agent), "the agent's end, though a forked child still lives")
        finally:
            os.kill(child, signal.SIGKILL)
