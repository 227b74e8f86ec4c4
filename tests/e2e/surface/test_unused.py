"""Of a loader that nobody iterates over it is said, and of no other; its report is that of what was made of it."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import OffloadWarning
from tests.support.agents import ROOT, Agent
from tests.support.loaders import QUICK
from tests.support.pictures import eval_transform, folder
from tests.support.unused import KINDS

FILES = 8
ALL = f"{FILES} of {FILES} samples preprocessed at the agent; "


def warned(block: Callable[[], object]) -> list[str]:
    """What is said of loaders that `block` makes."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        block()
        gc.collect()
    return [str(one.message) for one in found if issubclass(one.category, OffloadWarning)]


@pytest.fixture
def made(root: Path, agent: Agent) -> Callable[[], Any]:
    def build() -> Any:
        dataset = folder(root, eval_transform())
        return OffloadingDataLoader(dataset, 4, agent=agent.address(), policy="resize-off", options=QUICK, seed=3)

    return build


def iterated(loader: Any) -> str:
    list(loader)
    said = str(loader.report().summary)
    loader.close()
    return said


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda loader: pickle.loads(pickle.dumps(loader)),
    "constructor": lambda loader: OffloadingDataLoader(
        loader.dataset, batch_sampler=loader.batch_sampler, agent=loader.agent, policy=loader.policy, seed=loader.seed
    ),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_that_is_iterated_over_counts(made: Any, how: str) -> None:
    def frameworks() -> None:
        loader = COPIES[how](made())  # the first one is gone by now
        assert iterated(loader).startswith(ALL)

    assert warned(frameworks) == []


@pytest.mark.parametrize("how", COPIES)
def test_the_user_s_loader_reports_what_a_copy_did(made: Any, how: str) -> None:
    loader = made()
    other = COPIES[how](loader)
    before = loader.report().summary
    said = iterated(other)
    report = loader.report()
    assert before == "nothing offloaded: no epoch has begun" and said.startswith(ALL)
    assert (report.summary, report.epoch) == (said, 0) and "of another loader over the same dataset" in report.notes[-1]
    del other
    gc.collect()
    assert loader.report().summary == said
    list(loader)
    assert not any("another loader" in note for note in loader.report().notes)
    loader.close()


def test_loaders_with_other_settings_report_for_themselves(made: Any) -> None:
    loader = made()
    other = OffloadingDataLoader(loader.dataset, 4, agent=loader.agent, policy="no-off")
    list(loader)
    assert other.report().summary == "nothing offloaded: no epoch has begun"
    loader.close()


def test_one_that_accelerate_has_prepared(made: Any) -> None:
    pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import Accelerator

    def prepared() -> None:
        loader = made()
        loader = Accelerator(cpu=True).prepare(loader)
        assert iterated(loader).startswith(ALL)

    assert warned(prepared) == []
    held = made()
    said = iterated(Accelerator(cpu=True).prepare(held))
    assert held.report().summary == said


@pytest.mark.parametrize("how", ["copy", "deepcopy", "constructor"])
def test_copies_that_nobody_iterates_over_either(made: Any, how: str) -> None:
    def replaced() -> None:
        loader = COPIES[how](made())
        loader = DataLoader(loader.dataset, batch_size=4)
        list(loader)

    (text,) = warned(replaced)
    assert "never iterated over" in text


def test_a_forked_process_that_iterates_over_it(made: Any) -> None:
    def forked() -> None:
        loader = made()
        pid = os.fork()
        if not pid:
            try:
                loader._use.note()  # as iterating does
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert "in this process; a copy of this loader in another process" in loader.report().summary

    assert warned(forked) == []


def test_an_error_that_is_handled_meanwhile_is_the_last_word(made: Any) -> None:
    def fails() -> None:
        try:
            loader = made()
            kept = DataLoader(loader.dataset)
            raise ValueError
        except ValueError:
            del loader
        del kept

    assert warned(fails) == []


def reported(loader: Any, told: Any) -> None:
    told.put(iterated(loader))


def test_a_process_that_is_spawned_iterates_over_it(made: Any) -> None:
    context = multiprocessing.get_context("forkserver")  # pickles as spawn does
    told: list[str] = []

    def spawned() -> None:
        loader, queue = made(), context.SimpleQueue()
        process = context.Process(target=reported, args=(loader, queue))
        process.start()
        process.join()
        assert not queue.empty()
        told.extend([queue.get(), loader.report().summary])

    assert warned(spawned) == []
    assert told[0].startswith(ALL)
    assert told[1] == (
        "nothing offloaded: no epoch has begun in this process; a copy of this loader in another process has a "
        "report of its own"
    )


def test_what_a_program_says_last(root: Path, agent: Agent) -> None:
    started = {
        kind: subprocess.Popen(
            [sys.executable, "-m", "tests.support.unused", kind, str(root), agent.address()],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
        )
        for kind in KINDS
    }  # fmt: skip
    told = {kind: [one for one in process.communicate(timeout=150)[1].splitlines() if one]
            for kind, process in started.items()}  # fmt: skip
    assert told["fails"][-1] == told["fails_and_exits"][-1] == "ValueError: no model for 2 batches"
    lines = told["goes_unused"]
    assert lines.count("ValueError: no model for 2 batches") == 2
    assert [number for number, line in enumerate(lines) if "never iterated over" in line] == [len(lines) - 2], (
        "of the one in the process that has not failed"
    )
