"""Settings of every test, and what tests of a running agent share.

A module may set `FILES`, the size of its tree, and `LOADER`, arguments of the loaders that `make` builds for it.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import multiprocessing.util
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from multiprocessing import context
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import settings

from tests.support.warm import INHERITED, Forked, forkserver_or_other, ready_to_fork, shared

if TYPE_CHECKING:
    from sophon_loader import LocalAgent
    from tests.support.agents import Agent, StartAgent
    from tests.support.loaders import MakeLoader

FOLDERS = ("unit", "contract", "property", "native", "e2e", "faults", "fuzz", "pages")
"""Each is the marker of the tests in it."""

LONG = (
    *("test_blocks.py", "test_resume.py", "test_loader.py", "test_auto.py", "test_other_agent.py"),
    *("test_frameworks.py", "test_live.py", "test_ranks.py", "test_asked_for.py", "test_loader_faults.py"),
    *("test_unused.py", "test_as_torch.py", "test_attacks.py", "test_batches.py", "test_auto_workers.py"),
    *("test_tail.py", "test_forks.py", "test_seeds.py", "test_other_values.py", "test_local_agent.py"),
    *("test_scripts.py", "test_ops.py", "test_late_agent.py", "test_replica_faults.py", "test_replica_seeds.py"),
)
"""Files whose tests take long together, the longest first."""

STUCK_S = 120.0
"""Seconds that a test may take before all stacks are shown; up to a sixth more for the tests behind it."""
_watched = {"since_s": -math.inf}

# No deadline: on a busy machine the first call of an op takes many times as long as the second.
settings.register_profile("full", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=settings.get_profile("full").max_examples // 5)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

# The default before Python 3.14. A test of another start method names it.
multiprocessing.set_start_method("fork", force=True)
PRELOADED = ["pytest", "torchvision", "sophon_loader.loader"]
"""What starts with a forkserver inherits nothing, as what is spawned, but need not import torch each time."""
multiprocessing.set_forkserver_preload(PRELOADED)
multiprocessing.util.spawnv_passfds = forkserver_or_other  # type: ignore[assignment]
if INHERITED in os.environ:
    shared()  # before this process forks any that would take it, too
# What is spawned is forked from there, too, unless a test asks for `new_interpreters`.
_SPAWNED = vars(context.SpawnProcess)["_Popen"]
context.SpawnProcess._Popen = vars(context.ForkServerProcess)["_Popen"]  # type: ignore[method-assign]

# Started in the background by a shell, this process ignores Ctrl-C, and so would the programs that tests send one to.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """The processes of pytest-xdist are forked, too, each with a warm process of its own."""
    from execnet.gateway_base import ThreadExecModel

    how = SimpleNamespace(Popen=partial(Forked, own=True), PIPE=subprocess.PIPE)
    ThreadExecModel.subprocess = how  # type: ignore[assignment, method-assign]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Names without an address in memory, so that the processes of pytest-xdist collect the same tests."""
    return type(val).__name__ if " at 0x" in repr(val) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, since the tests of a file stay in one process: none is left when the other processes end."""
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_itemcollected(item: pytest.Item) -> None:
    folder = _folder(item.path)
    if folder in FOLDERS:
        item.add_marker(folder)


@cache
def _folder(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).parts[0]


def pytest_collection() -> None:
    gc.disable()  # nothing of what comes is garbage


def pytest_collection_finish() -> None:
    """What has been imported stays: to walk torch's modules takes 0.3 s a collection, and some tests ask for 20."""
    ready_to_fork()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time of a run of several folders went: tests, and their seconds in all processes together."""
    tests, seconds = Counter[str](), Counter[str]()
    for reports in terminalreporter.stats.values():
        for report in (one for one in reports if isinstance(one, pytest.TestReport)):
            folder = report.nodeid.split("/")[1]
            tests[folder] += report.when == "call"
            seconds[folder] += report.duration  # type: ignore[assignment]
    if len(seconds) > 1:
        terminalreporter.section("seconds by folder")
        for folder, spent_s in seconds.most_common():
            terminalreporter.write_line(f"{folder:9}{tests[folder]:7,} tests {spent_s:7.1f} s")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """Have all stacks shown of a test that takes longer than `STUCK_S`, even where C holds the interpreter's lock.

    pytest's own `faulthandler_timeout` starts and joins a thread for each of 10 000 tests, which takes 6 ms each where
    as many processes run as there are cores.
    """
    now_s = time.monotonic()
    if now_s - _watched["since_s"] > STUCK_S / 6:
        _watched["since_s"] = now_s
        faulthandler.dump_traceback_later(STUCK_S * 7 / 6, file=item.config.stash[fault_handler_stderr_fd_key])


def pytest_sessionfinish() -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # else some libraries call it a leak as the process ends


@pytest.fixture(scope="session", autouse=True)
def no_keys_of_ones_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keys that the user of this host has are not used, and none are made where he has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("SOPHON_KEY", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def threads_of_tests_draw_nothing() -> Iterator[None]:
    """Relays, stand-ins of agents and pools that are ours may run beside a loop with `num_workers=0`."""
    from sophon_loader.pipeline import randomness

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness, "_DRAW_NOTHING", randomness._DRAW_NOTHING | {"tests", "bench", "examples"})
        yield


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test spawns, and a loader's own agent, start as they do for users, and import torch once more."""
    from sophon_loader.client import local_agent

    monkeypatch.setattr(context.SpawnProcess, "_Popen", _SPAWNED)
    monkeypatch.setattr(local_agent, "subprocess", subprocess)


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of some 40 files: several sizes, grey, progressive, PNG, nested."""
    from tests.support.pictures import make_tree  # imports torch, which most tests can do without

    return make_tree(tmp_path_factory.mktemp("images"), files=40)


@pytest.fixture(scope="module")
def start_agent(image_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartAgent]:
    """Agents of `image_tree`, exported as `d`, with more arguments; they end with the module at the latest."""
    from tests.support.agents import Agent

    started: list[Agent] = []

    def start(*arguments: str, workers: int = 2) -> Agent:
        log = tmp_path_factory.mktemp("agent") / "stderr"
        started.append(Agent({"d": image_tree}, *arguments, workers=workers, log=log))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of the module, in a folder of its own."""
    from tests.support.pictures import make_tree

    return make_tree(tmp_path_factory.mktemp("all") / "pictures", getattr(request.module, "FILES", 48))


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    """An agent that serves `root`, and the folder above it as `above`."""
    from tests.support.agents import EXPORT, agent_for

    with agent_for({EXPORT: root, "above": root.parent}) as running:
        yield running


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterator[MakeLoader]:
    """Builds loaders of `root` at `agent` with the module's `LOADER`, unless told otherwise; closes them at the end."""
    from sophon_loader import OffloadingDataLoader
    from tests.support.loaders import QUICK
    from tests.support.pictures import folder

    usual = {"options": QUICK, **getattr(request.module, "LOADER", {})}
    made: list[OffloadingDataLoader[Any]] = []

    def build(dataset: Any = None, agent: str | LocalAgent | None = "", **arguments: Any) -> OffloadingDataLoader[Any]:
        if dataset is None:
            dataset = folder(request.getfixturevalue("root"))
        if agent == "":
            agent = request.getfixturevalue("agent").address()
        made.append(OffloadingDataLoader(dataset, agent=agent, **{**usual, **arguments}))
        return made[-1]

    yield build
    for loader in made:
        loader.close()
