"""A loader says in the folder of its agents how many cores of theirs it could use: real agents, real files."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader
from sophon_loader.auto import wanted_agents
from sophon_loader.wire.wanted_cores import WantedCores
from storage_agent.fleet.wanted_files import read_wanted
from tests.support.agents import EXPORT, ROOT, until, with_modules
from tests.support.pictures import folder
from tests.support.replicas import LOADER, PATIENT
from tests.support.rostered import SAMPLER, Epoch, MakeAgent

EVERY_S = 0.2


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(wanted_agents, "REWRITTEN_S", EVERY_S)
    caplog.set_level("INFO", "sophon_loader")


def loader_of(root: Path, roster: Path, **arguments: Any) -> OffloadingDataLoader[Any]:
    given = {"options": PATIENT, "policy": "auto", "sampler": SAMPLER, **LOADER, **arguments}
    return OffloadingDataLoader(folder(root), agent=f"file://{roster}/{EXPORT}", **given)


def wanted(roster: Path) -> dict[str, WantedCores]:
    """By name, what loaders say; what is being replaced is there all the time."""
    return {path.name: WantedCores.parse(path.read_text()) for path in roster.glob("wanted-*")}


def iterated(loader: Any, root: Path, condition: Callable[[], bool], what: str) -> Epoch:
    loader.set_epoch(0)
    epoch = Epoch(loader, root)
    epoch.until(condition, what)
    return epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_it_comes_says_what_the_report_says_stays_between_epochs_and_goes(
    root: Path, roster: Path, announced: MakeAgent, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    announced(), announced()
    loader = loader_of(root, roster, num_workers=workers)
    try:
        epoch = iterated(loader, root, lambda: bool(wanted(roster)), "it is there")
        ((name, said),) = wanted(roster).items()
        assert name.endswith("-0.json") and f"-{os.getpid()}-" in name
        report = loader.report().as_dict()
        assert report["wanted_agent_cores"] is not None and 0 <= said.cores < 1e6
        assert set(read_wanted(str(roster))) == {name}, "what sizes a fleet finds it, too"
        assert report["wanted_agents"] == pytest.approx(report["wanted_agent_cores"] / said.per_agent)
        assert loader.report().scalars()["wanted_agent_cores"] == report["wanted_agent_cores"]
        assert "agents of use" in str(loader.report())
        del epoch  # its workers end, and nobody iterates
        before = (roster / name).stat().st_mtime_ns
        until(lambda: (roster / name).stat().st_mtime_ns > before, "it is written anew all the same")
    finally:
        loader.close()
    assert not wanted(roster) and not list(roster.glob(".wanted-*"))
    assert "wanted cores not written" not in caplog.text


def test_agents_are_not_disturbed_and_two_loaders_have_a_file_each(
    root: Path, roster: Path, announced: MakeAgent
) -> None:
    agent = announced()
    one, other = loader_of(root, roster), loader_of(root, roster)
    try:
        first = iterated(one, root, lambda: len(wanted(roster)) == 1, "the first's is there")
        second = iterated(other, root, lambda: len(wanted(roster)) == 2, "the second's is there")
        one.close()
        assert len(wanted(roster)) == 1
        first = iterated(one, root, lambda: len(wanted(roster)) == 2, "it is there again in a later epoch")
        assert second.sent(agent) > 0 and first.sent(agent) > 0
        del first, second, one
        gc.collect()
        until(lambda: len(wanted(roster)) == 1, "that of a loader that nobody holds goes")
    finally:
        other.close()
    assert not wanted(roster)


@pytest.mark.parametrize("policy", ["all-off", "no-off"])
def test_other_policies_say_nothing(root: Path, roster: Path, announced: MakeAgent, policy: str) -> None:
    announced()
    loader = loader_of(root, roster, policy=policy)
    try:
        end_s = time.monotonic() + 5.0
        iterated(loader, root, lambda: time.monotonic() > end_s, "some seconds have passed")
        assert not wanted(roster) and loader.report().as_dict()["wanted_agent_cores"] is None
        assert "agents of use" not in str(loader.report())
    finally:
        loader.close()


def test_a_folder_that_cannot_be_written_to_costs_no_sample(
    root: Path, roster: Path, announced: MakeAgent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one to whom all may be written, so the system call fails in its place."""
    agent = announced()
    mkstemp = before_each_file(monkeypatch, lambda: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    loader = loader_of(root, roster, num_workers=2)
    try:
        epoch = iterated(loader, root, lambda: len(mkstemp) > 3, "it was tried again and again")
        assert not wanted(roster) and epoch.sent(agent) > 0
        assert caplog.text.count("wanted cores not written") == 1 and "Permission denied" in caplog.text
        assert loader.report().as_dict()["wanted_agent_cores"] is not None
    finally:
        loader.close()


def before_each_file(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> list[str]:
    """Have each new file in the folder do that first; what was asked for."""
    asked: list[str] = []
    mkstemp = tempfile.mkstemp

    def made(*given: Any, **named: Any) -> Any:
        if str(named.get("prefix", "")).startswith(".wanted-"):
            asked.append(named["prefix"])
            act()
        return mkstemp(*given, **named)

    monkeypatch.setattr(tempfile, "mkstemp", made)
    return asked


def test_a_folder_that_hangs_costs_no_sample(
    root: Path, roster: Path, announced: MakeAgent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    announced()
    asked = before_each_file(monkeypatch, lambda: goes_on.wait(60.0))
    monkeypatch.setattr(wanted_agents, "GONE_S", 1.0)
    monkeypatch.setattr(wanted_agents, "EVERY_S", 1.0)
    monkeypatch.setattr(wanted_agents, "CLOSE_S", 0.2)
    loader = loader_of(root, roster)
    try:
        iterated(loader, root, lambda: "its disk does not answer" in caplog.text, "the epoch goes on, and it is said")
        begun_s = time.monotonic()
        loader.close()
        assert time.monotonic() - begun_s < 5.0 and len(asked) == 1
        goes_on.set()
        until(lambda: not list(roster.glob("*wanted-*")), "what was written too late goes")
    finally:
        goes_on.set()
        loader.close()


def test_a_forked_process_leaves_it_alone_and_has_its_own(root: Path, roster: Path, announced: MakeAgent) -> None:
    announced()
    loader = loader_of(root, roster)
    context = multiprocessing.get_context("fork")

    def child() -> None:
        loader.close()
        assert len(wanted(roster)) == 1, "that of the parent"
        iterated(loader, root, lambda: len(wanted(roster)) == 2, "its own is there")
        loader.close()
        assert len(wanted(roster)) == 1, "its own is gone"
        sys.exit(7)

    try:
        epoch = iterated(loader, root, lambda: len(wanted(roster)) == 1, "it is there")
        (before,) = wanted(roster)
        forked = context.Process(target=child)
        forked.start()
        forked.join(60.0)
        assert forked.exitcode == 7
        assert list(wanted(roster)) == [before]
        epoch.next()
    finally:
        loader.close()
    assert not wanted(roster)


SCRIPT = """
import sys, time
from pathlib import Path
from sophon_loader import OffloadingDataLoader
from sophon_loader.auto import wanted_agents
from tests.support.pictures import folder

if __name__ == "__main__":
    wanted_agents.REWRITTEN_S = 0.2
    root, roster = map(Path, sys.argv[1:3])
    loader = OffloadingDataLoader(
        folder(root), agent=f"file://{roster}/EXPORT", batch_size=2, seed=3, sampler=list(range(48)) * 500
    )
    end_s = time.monotonic() + 40
    for _ in loader:
        if list(roster.glob("wanted-*")) or time.monotonic() > end_s:
            break
    print("there" if list(roster.glob("wanted-*")) else "not there")
"""


def test_the_end_of_the_process_removes_it(root: Path, roster: Path, announced: MakeAgent, tmp_path: Path) -> None:
    """With nothing closed."""
    announced()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("EXPORT", EXPORT))
    command = [sys.executable, str(script), str(root), str(roster)]
    done = subprocess.run(command, cwd=ROOT, env=with_modules(ROOT), capture_output=True, text=True, timeout=90)
    assert done.stdout.split() == ["there"], done.stderr
    assert not list(roster.glob("*wanted-*"))
