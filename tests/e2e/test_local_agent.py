"""`agent="local"` under `auto`: it starts beside the loader, or not at all where it could gain nothing.

No time is asserted: an agent that shall not answer yet waits for a file.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.utils.data import ConcatDataset

from sophon_loader import LocalAgent, OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import AgentUnreachable, ConfigError
from sophon_loader.fleet import agent as module
from tests.support.agents import Agent, until
from tests.support.loaders import LOCAL, run_epoch, samples_of
from tests.support.pictures import eval_transform, folder, make_tree
from tests.support.warm import Forked

FILES = 48
LOADER = {"batch_size": 3, "policy": "auto", "seed": 3}
STARTING = "the agent is starting, and until"
GATE = """
import os, time
while not os.path.exists({path!r}):
    time.sleep(0.02)
"""
"""A module of ops that takes its time."""
Make = Callable[..., OffloadingDataLoader[Any]]


@pytest.fixture
def make(make: Any) -> Make:
    """As elsewhere, with an agent of the loader's own unless told otherwise."""
    return lambda dataset=None, agent=LOCAL, **arguments: make(dataset, agent, **arguments)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets how many cores the loader believes in; at first so many that there are always some to spare."""

    def set_cores(number: float) -> None:
        monkeypatch.setattr(module, "cores_available", lambda: number)

    set_cores(64.0)
    return set_cores


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a file must appear before an agent with `GATED` ops is ready."""
    path = tmp_path / "open"
    (tmp_path / "gated_ops.py").write_text(GATE.format(path=str(path)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return path


GATED = LocalAgent(workers=1, ops=("gated_ops",))


def reference(root: Path, epoch: int) -> list[tuple[str, Any]]:
    """An epoch in order, without agent and workers."""
    loader = OffloadingDataLoader(folder(root), batch_size=5, policy="no-off", seed=3)
    loader.set_epoch(epoch)
    return run_epoch(loader)


def agents(root: Path) -> list[psutil.Process]:
    """The agents of this process that serve a folder."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if f"local={root}" in (Forked.commands.get(child.pid) or child.cmdline())]


def family(root: Path) -> list[psutil.Process]:
    """The agents, and what they have started."""
    found = agents(root)
    return [*found, *(child for one in found for child in one.children(recursive=True))]


def left_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def says(loader: Any, what: str) -> bool:
    """Whether a note of the report says so."""
    return any(what in note for note in loader.report().as_dict()["notes"])


# --- beside the loader ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize(
    ("workers", "arguments"),
    [
        (0, {}),
        (1, {}),
        (2, {"persistent_workers": True}),
        (1, {"multiprocessing_context": "spawn", "persistent_workers": True}),
    ],
    ids=str,
)
def test_files_are_read_here_until_it_answers(
    root: Path, make: Make, gate: Path, workers: int, arguments: dict[str, Any]
) -> None:
    loader = make(agent=GATED, num_workers=workers, **arguments)
    assert samples_of(loader) == reference(root, 0)
    report = loader.report().as_dict()
    assert (report["wire_bytes"], report["fallbacks"], report["choices"]) == (0, 0, {"file": FILES})
    assert says(loader, STARTING) and len(agents(root)) == 1

    gate.touch()
    epoch = 0

    def crossed() -> bool:
        nonlocal epoch
        epoch += 1
        assert samples_of(loader) == reference(root, epoch)
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"]) == (FILES, 0)
        return bool(report["wire_bytes"])

    until(crossed, "the workers ask the agent for some samples")
    assert not says(loader, STARTING)
    assert len(agents(root)) == 1


@pytest.fixture
def on_two_disks(root: Path) -> Iterator[ConcatDataset[Any]]:
    """`root`, and pictures of which nothing but `/` holds both."""
    if not os.path.isdir("/dev/shm") or os.path.commonpath([root, "/dev/shm"]) != "/":
        pytest.skip("needs two folders without a common one")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        yield ConcatDataset([folder(root), folder(make_tree(Path(other) / "more", 8))])


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("settings", ["local", LOCAL, LocalAgent(workers=1, limit_mbit=1000)], ids=str)
def test_a_dataset_on_two_disks(make: Make, on_two_disks: ConcatDataset[Any], settings: str | LocalAgent) -> None:
    expected = run_epoch(OffloadingDataLoader(on_two_disks, batch_size=5, policy="no-off", seed=3))
    loader = make(on_two_disks, agent=settings, policy="all-off", num_workers=1)
    assert samples_of(loader) == expected
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"]) == (FILES + 8, 0)
    assert report["wire_bytes"]


@pytest.mark.usefixtures("cores")
def test_two_loaders_at_once(root: Path, make: Make) -> None:
    both = [make(num_workers=1), make(num_workers=0)]
    while any(not loader.report().epoch or says(loader, STARTING) for loader in both):
        for first, second in zip(*both, strict=True):
            assert samples_of([first]) == samples_of([second])
    assert len(agents(root)) == 2


@pytest.mark.parametrize("settings", [LOCAL, LocalAgent(workers=1, limit_mbit=1000)], ids=["a plan", "a paced link"])
@pytest.mark.usefixtures("cores")
def test_what_was_asked_for_is_waited_for(make: Make, settings: LocalAgent) -> None:
    """A policy that says what to offload, and a link that shall be seen at work."""
    policy = "auto" if settings.limit_mbit else "all-off"
    loader = make(agent=settings, policy=policy)
    next(iter(loader))
    assert not says(loader, STARTING)
    assert loader.report().as_dict()["wire_bytes"] > 0


# --- an agent that cannot ------------------------------------------------------------------------------------


def fails(loader: Any) -> None:
    """Iterate until that fails."""
    while True:
        samples_of(loader)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("policy", ["auto", "all-off"])
def test_one_that_cannot_import_its_ops(root: Path, make: Make, policy: str) -> None:
    loader = make(agent=LocalAgent(workers=1, ops=("no_such_module",)), policy=policy)
    for _ in range(2):  # the second iteration begins with another one
        with pytest.raises(AgentUnreachable, match="an agent must start, got one that ended with status 1"):
            fails(loader)
        assert not agents(root)


@pytest.mark.usefixtures("cores")
def test_the_epoch_goes_on_for_whoever_catches_that(root: Path, make: Make) -> None:
    given: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
    loader = make(agent=LocalAgent(workers=1, ops=("no_such_module",)), **given)
    found: list[Any] = []
    failed = False
    while not failed:
        try:
            epoch, batches = loader._place.next_epoch, iter(loader)
        except AgentUnreachable:  # between two epochs, where no batch can be lost
            loader = make(agent=LocalAgent(workers=1, ops=("no_such_module",)), **given)
            continue
        found.clear()
        try:
            for batch in batches:
                found += samples_of([batch])
        except AgentUnreachable:
            failed = True
    assert found + samples_of(batches) == reference(root, epoch), "no batch is lost to the error"
    assert says(loader, "the agent could not be started or reached: an agent must start")
    assert samples_of(loader) == reference(root, epoch + 1), "persistent workers read files on"


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("policy", ["auto", "all-off"])
def test_a_link_that_leaves_the_folder(tmp_path: Path, make: Make, policy: str) -> None:
    """It serves the user's own files to the user, wherever they are."""
    root = make_tree(tmp_path / "tree", 8)
    for picture in sorted(root.rglob("*.*"))[::3]:
        picture.symlink_to(picture.rename(tmp_path / f"of-{picture.parent.name}-{picture.name}"))
    loader = make(folder(root, eval_transform()), policy=policy)
    assert samples_of(loader) == samples_of(make(folder(root, eval_transform()), agent=None))
    if policy == "all-off":
        assert loader.report().as_dict()["fallbacks"] == 0


@pytest.mark.usefixtures("new_interpreters")
def test_signals_that_a_scheduler_sends_to_all_processes_of_a_job_do_not_end_it(root: Path, make: Make) -> None:
    loader = make(folder(root), policy="all-off")
    expected = samples_of(loader)
    assert loader._engine is not None and loader._engine._contact.agent is not None
    own = loader._engine._contact.agent._process
    assert own is not None
    agent = psutil.Process(own.pid)
    processes = [agent, *agent.children(recursive=True)]
    assert len(processes) >= 3, "workers, and what they are forked from, are signalled too"
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        for process in processes:
            process.send_signal(number)
    assert len(samples_of(loader)) == len(expected)
    report = loader.report().as_dict()
    assert report["fallbacks"] == 0 and set(report["cuts"]) != {0}
    assert all(process.is_running() for process in processes)
    loader.close()
    until(lambda: not any(process.is_running() for process in processes), "it ends with its loader")


@pytest.mark.parametrize("number", [64.0, 1.0])
def test_data_that_is_not_on_this_host(agent: Agent, make: Make, cores: Callable[[float], None], number: float) -> None:
    cores(number)
    remote = RemoteImageFolder(agent.address(), eval_transform())
    with pytest.raises(ConfigError, match="agent='local' must have a dataset on this host, got a RemoteImageFolder"):
        iter(make(remote))


# --- the end --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("how", ["close", "collect"])
@pytest.mark.parametrize("gated", [True, False])
def test_nothing_is_left_of_one_that_still_starts(root: Path, make: Any, gate: Path, how: str, gated: bool) -> None:
    """`gated`: its worker runs, and is not ready. Else torch is still being imported, most likely."""
    settings = GATED if gated else LOCAL
    loader = OffloadingDataLoader(folder(root), 3, agent=settings, num_workers=1, seed=3)
    batches = iter(loader)
    next(batches)
    until(lambda: len(family(root)) >= (4 if gated else 3), "it has started something")
    started = family(root)
    if how == "close":
        loader.close()
    del batches, loader
    gc.collect()
    psutil.wait_procs(started, timeout=3.0)  # the kernel may take a moment for those that nobody waits for
    assert not left_of(started)


# --- not at all -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "workers"), [(1.0, 0), (1.5, 2), (2.0, 2)])
def test_none_is_started_where_it_could_gain_nothing(
    root: Path, make: Make, cores: Callable[[float], None], number: float, workers: int
) -> None:
    cores(number)
    loader = make(num_workers=workers, batch_size=1)  # enough steps for a word on what limits
    for epoch in range(2):
        assert samples_of(loader) == reference(root, epoch)
        report = loader.report().as_dict()
        assert (report["samples"], report["fallbacks"], report["wire_bytes"]) == (FILES, 0, 0)
        assert report["bottleneck"] is not None
        assert says(loader, f"the loader's {max(1, workers)} processes may use all {number:g}")
        assert not agents(root)


def test_one_comes_and_goes_with_the_cores_to_spare(root: Path, make: Make, cores: Callable[[float], None]) -> None:
    cores(2.0)
    loader = make(num_workers=2)
    for epoch, (workers, started) in enumerate([(2, 0), (1, 1), (0, 1), (2, 0)]):
        loader.num_workers = workers
        loader.prefetch_factor = 2 if workers else None
        assert samples_of(loader) == reference(root, epoch)
        assert len(agents(root)) == started
        assert says(loader, "no agent was started") == (not started)
