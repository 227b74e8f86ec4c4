"""What goes wrong in the field: the error names the thing, the place and the remedy; no sample is lost or doubled.

Every test is bounded by the loader's own time-outs, which are short here, and leaves an agent that answers.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import zmq
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader, OffloadOptions, RemoteImageFolder
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.session import Session, Terms
from sophon_loader.client.wanted import BatchId, Say, Wanted
from sophon_loader.errors import (
    AgentUnreachable,
    ConfigError,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
    UnknownExport,
)
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.wire.messages import Ping
from tests.support.agents import Agent, agent_for, until
from tests.support.loaders import QUICK, digest_of, run_epoch, said, samples_of
from tests.support.pictures import eval_transform, folder, make_tree, train_transform
from tests.support.warm import run_forked

FILES = 48
REPOSITORY = Path(__file__).parents[2]
LOADER = {"batch_size": 4, "policy": "all-off", "seed": 3}


pytestmark = pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning")


@pytest.fixture
def agent(agent: Agent) -> Agent:
    """The module's, started again where a test before has killed it."""
    if agent.process.poll() is not None:
        agent.start()
    return agent


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(root, tmp_path / "tree"))


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """One agent for all tests that do not harm it; it exports the folder above every test's own, and an empty one."""
    cage = tmp_path_factory.mktemp("cage")
    (cage / "something").touch()
    with agent_for({"all": tmp_path_factory.getbasetemp(), "cage": cage}) as agent:
        yield agent


@pytest.fixture
def address(shared_agent: Agent, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where `tree` is served; afterwards, the agent must still be well."""
    yield shared_agent.address(f"all/{tree.relative_to(tmp_path_factory.getbasetemp())}")
    assert shared_agent.alive()
    until(lambda: shared_agent.status()["outstanding"] == 0, "everything is answered")


@pytest.fixture(scope="module")
def expected(root: Path) -> list[tuple[str, Any]]:
    return run_epoch(OffloadingDataLoader(folder(root), 4, policy="no-off", seed=3))


def outcomes(loader: Any) -> list[Any]:
    """What each `next` gives: samples of a batch, or an exception."""
    iterator = iter(loader)
    found: list[Any] = []
    while True:
        try:
            found.append(samples_of([next(iterator)]))
        except StopIteration:
            return found
        except Exception as error:
            found.append(error)


def batches(samples: list[Any], size: int = 4) -> list[list[Any]]:
    return [samples[i : i + size] for i in range(0, len(samples), size)]


LAYOUTS = [("no-off", 0), ("no-off", 1), ("all-off", 0), ("all-off", 1), ("resize-off", 2)]


# --- bad files ------------------------------------------------------------------------------------------------


def one_bad(loader: Any, expected: list[Any] | None, index: int) -> BaseException:
    """The error of the one batch that fails; all others must be as expected."""
    found = outcomes(loader)
    good = found if expected is None else batches(expected)
    assert len(found) == len(good) == FILES // 4
    errors = {number: one for number, one in enumerate(found) if isinstance(one, Exception)}
    assert set(errors) == {index // 4}
    assert [one for n, one in enumerate(found) if n not in errors] == [b for n, b in enumerate(good) if n not in errors]
    return errors[index // 4]


@pytest.mark.parametrize(("policy", "workers"), LAYOUTS)
def test_a_link_that_leaves_the_export(
    root: Path, tmp_path: Path, shared_agent: Agent, make: Any, expected: Any, policy: str, workers: int
) -> None:
    cage = Path(shared_agent.announcement.exports["cage"])
    dataset = folder(shutil.copytree(root, cage / f"{policy}-{workers}"))
    path, _ = dataset.samples[9]
    os.symlink(shutil.move(path, tmp_path / "outside.jpg"), path)
    address = shared_agent.address(f"cage/{policy}-{workers}")
    error = one_bad(make(dataset, address, policy=policy, num_workers=workers), expected, 9)
    assert shared_agent.alive()
    assert type(error) is SampleOutsideExport and isinstance(error, PermissionError)
    for part in (os.path.relpath(path, cage), shared_agent.endpoint, "link that leaves it", "'cage'"):
        assert part in said(error)


@pytest.mark.parametrize(("policy", "workers"), LAYOUTS)
def test_a_file_that_was_deleted(tree: Path, address: str, make: Any, expected: Any, policy: str, workers: int) -> None:
    dataset = folder(tree)
    path, _ = dataset.samples[9]
    os.remove(path)
    error = one_bad(make(dataset, address, policy=policy, num_workers=workers), expected, 9)
    assert type(error) is SampleMissing and isinstance(error, FileNotFoundError)
    for part in (os.path.relpath(path, tree), address, "must hold the same files"):
        assert part in said(error)


def _truncate(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def _no_image(path: str) -> None:
    Path(path).write_bytes(b"this is no image" * 50)


def _empty(path: str) -> None:
    Path(path).write_bytes(b"")


@pytest.mark.parametrize(("policy", "workers"), LAYOUTS)
@pytest.mark.parametrize("spoil", [_truncate, _no_image, _empty])
def test_a_file_that_cannot_be_decoded(
    tree: Path, address: str, make: Any, expected: Any, policy: str, workers: int, spoil: Any
) -> None:
    dataset = folder(tree)
    path, _ = dataset.samples[9]
    spoil(path)
    error = one_bad(make(dataset, address, policy=policy, num_workers=workers), expected, 9)
    plain = one_bad(DataLoader(dataset, 4, num_workers=workers), None, 9)
    assert type(error) is type(plain)
    for part in (os.path.relpath(path, tree), address, "in op 0 (decode) of the pipeline", "sample 9"):
        assert part in said(error)


def test_an_op_that_fails(tree: Path, address: str, make: Any) -> None:
    """It fails as in DataLoader, and says that it also failed at the agent."""
    dataset = folder(tree, v1.Compose([v1.RandomCrop(5000), v1.ToTensor()]))
    for workers in (0, 1):
        for error in outcomes(make(dataset, address, num_workers=workers)):
            assert type(error) is ValueError
            for part in ("Required crop size", "in op 1 (v1.RandomCrop)", "ValueError at the agent", address):
                assert part in said(error)


def test_a_pipe_instead_of_a_file(tree: Path, address: str, make: Any, expected: Any) -> None:
    dataset = folder(tree)
    path, _ = dataset.samples[9]
    os.remove(path)
    os.mkfifo(path)
    error = one_bad(make(dataset, address, sampler=range(FILES)), expected, 9)
    assert type(error) is SampleUnreadable
    assert "regular file" in said(error)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bad", [FILES, -FILES - 1, 10**12])
def test_an_index_that_the_dataset_does_not_have(
    tree: Path, address: str, make: Any, expected: Any, workers: int, bad: int
) -> None:
    """The batches around it are delivered, though a look-ahead meets the bad one earlier."""
    order = [*range(8), bad, *range(9, 16)]
    loader = make(folder(tree), address, sampler=order, num_workers=workers)
    found = outcomes(loader)
    assert loader.report().as_dict()["retries"] == 0, "nothing got lost on the way"
    assert isinstance(found[2], IndexError) and f"got {bad}" in said(found[2])
    assert [found[n] for n in (0, 1, 3)] == [batches(expected)[n] for n in (0, 1, 3)]


# --- bad addresses --------------------------------------------------------------------------------------------


def test_an_address_where_nobody_listens(tree: Path, make: Any) -> None:
    options = OffloadOptions(connect_timeout_s=0.5, agent_missing="raise")
    loader = make(folder(tree), "tcp://127.0.0.1:9/pictures", options=options)
    started_s = time.monotonic()
    for _ in range(2):
        with pytest.raises(
            AgentUnreachable, match=r"must answer at tcp://127.0.0.1:9, got nothing.*sophon-agent serve"
        ):
            iter(loader)
    assert time.monotonic() - started_s < 5
    with pytest.raises(AgentUnreachable):
        RemoteImageFolder("tcp://127.0.0.1:9/x", options=options)


def test_something_else_listens_there(tree: Path, make: Any) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        options = OffloadOptions(connect_timeout_s=0.5, agent_missing="raise")
        loader = make(folder(tree), f"tcp://127.0.0.1:{port}/x", options=options)
        with pytest.raises(AgentUnreachable):
            iter(loader)


def test_an_export_that_the_agent_does_not_have(tree: Path, shared_agent: Agent, make: Any) -> None:
    for build in (lambda a: iter(make(folder(tree), a)), RemoteImageFolder):
        with pytest.raises(UnknownExport, match=r"\['all', 'cage'\], got 'imagenet'.*--export NAME=FOLDER"):
            build(shared_agent.address("imagenet"))


def test_a_folder_that_the_export_does_not_have(shared_agent: Agent) -> None:
    with pytest.raises(SampleMissing, match="no-such-folder"):
        RemoteImageFolder(shared_agent.address("all/no-such-folder"))


def test_a_dataset_that_is_not_under_the_export(tree: Path, shared_agent: Agent, address: str, make: Any) -> None:
    with TemporaryDirectory() as outside:
        elsewhere = shutil.copytree(tree, Path(outside) / "pictures")
        with pytest.raises(ConfigError) as caught:
            iter(make(folder(elsewhere), shared_agent.address("all")))
        for part in (str(elsewhere), shared_agent.address("all"), "it has no", "tcp://host:port/export/folder"):
            assert part in said(caught.value)
    assert samples_of(make(folder(tree), address, num_workers=1)), "with the folder in the address it works"


def test_other_files_of_the_same_names(tree: Path, address: str, make: Any, tmp_path: Path) -> None:
    twin = shutil.copytree(tree, tmp_path / "twin")
    for path in twin.rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ConfigError, match=r"must hold the same files, got .* with \d+ bytes in .* and \d+ bytes in"):
        iter(make(folder(twin), address))


# --- agents that go away --------------------------------------------------------------------------------------


def steps(loader: Any, at: dict[int, Callable[[], object]]) -> list[tuple[str, Any]]:
    """One epoch, doing something before the batches of the given numbers."""
    found, iterator, number = [], iter(loader), 0
    while True:
        at.get(number, lambda: None)()
        try:
            found += samples_of([next(iterator)])
        except StopIteration:
            return found
        number += 1


@pytest.mark.parametrize(("policy", "workers"), [("no-off", 0), ("all-off", 0), ("all-off", 1), ("resize-off", 2)])
def test_a_killed_agent_costs_time_and_no_sample(
    root: Path, agent: Agent, make: Any, expected: Any, policy: str, workers: int
) -> None:
    loader = make(folder(root), agent.ready().address(), policy=policy, num_workers=workers, batch_size=2)
    started_s = time.monotonic()
    assert steps(loader, {2: agent.kill}) == expected
    assert time.monotonic() - started_s < 20
    report = loader.report().as_dict()
    assert report["samples"] == FILES
    assert 0 < report["fallbacks"] < FILES
    if workers == 0:
        again_s = time.monotonic()
        loader.set_epoch(0)
        assert samples_of(loader) == expected, "the next epoch works as well"
        assert time.monotonic() - again_s < 10, "and does not wait at every batch"
        assert loader.report().as_dict()["fallbacks"] == FILES


@pytest.mark.parametrize("workers", [0, 1])
def test_a_killed_agent_and_no_files_here(root: Path, agent: Agent, make: Any, expected: Any, workers: int) -> None:
    dataset = RemoteImageFolder(agent.address(), transform=train_transform(), options=QUICK)
    loader = make(dataset, agent.address(), num_workers=workers, batch_size=2)
    iterator = iter(loader)
    found = samples_of([next(iterator)])
    agent.kill()
    started_s = time.monotonic()
    with pytest.raises(AgentUnreachable) as caught:
        for batch in iterator:
            found += samples_of([batch])
    assert time.monotonic() - started_s < 10
    assert found == expected[: len(found)]
    for part in (
        agent.address(),
        "silence for 1.5 s",
        "cannot be read on this host",
        "restart the agent",
        "class_",
    ):
        assert part in said(caught.value)
    with pytest.raises(AgentUnreachable, match=agent.endpoint):
        dataset[0]
    del iterator, caught  # and so the worker, which would go on with its batches at the next test's agent
    gc.collect()


@pytest.mark.parametrize(
    ("policy", "workers", "mounted"),
    [("no-off", 0, False), ("all-off", 0, True), ("all-off", 2, False), ("resize-off", 1, True)],
)
def test_an_agent_that_is_restarted(
    root: Path, agent: Agent, make: Any, expected: Any, policy: str, workers: int, mounted: bool
) -> None:
    """On the same port, without a memory of the pipeline."""
    dataset: Any = folder(root)
    if not mounted:
        dataset = RemoteImageFolder(agent.address(), transform=train_transform(), options=QUICK)
    options = OffloadOptions(connect_timeout_s=20, heartbeat_s=0.3, dead_after_s=30.0, resend_after_s=20, window=4)
    loader = make(dataset, agent.address(), policy=policy, num_workers=workers, batch_size=2, options=options)
    before = agent.status()["instance"]

    def restart() -> None:
        agent.kill()
        agent.start()

    started_s = time.monotonic()
    assert steps(loader, {3: restart}) == expected
    assert time.monotonic() - started_s < 40
    assert agent.status()["instance"] != before
    assert agent.status()["pipelines"] == (policy != "no-off")
    report = loader.report().as_dict()
    assert (report["samples"], report["fallbacks"], report["degraded"]) == (FILES, 0, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_that_comes_back_is_used_again(
    root: Path, agent: Agent, make: Any, expected: Any, workers: int
) -> None:
    loader = make(folder(root), agent.address(), num_workers=workers, batch_size=2, persistent_workers=workers > 0)
    assert steps(loader, {2: agent.kill}) == expected
    agent.start()
    agent.ready()

    def used_again() -> bool:
        loader.set_epoch(0)
        assert samples_of(loader) == expected
        return bool(loader.report().as_dict()["fallbacks"] == 0)

    until(used_again, "the agent is used again")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "remote"])
def test_an_agent_that_stands_still_for_a_while(
    root: Path, agent: Agent, make: Any, expected: Any, workers: int, mounted: bool
) -> None:
    """Longer than `dead_after_s` where the files are mounted, else shorter."""
    dataset: Any = folder(root)
    still_s = 2.5
    if not mounted:
        dataset = RemoteImageFolder(agent.address(), transform=train_transform(), options=QUICK)
        still_s = 1.0
    loader = make(dataset, agent.address(), num_workers=workers, batch_size=2)
    resumed = None

    def pause() -> None:
        nonlocal resumed
        agent.pause()
        resumed = threading.Timer(still_s, agent.go_on)
        resumed.start()

    assert steps(loader, {3: pause}) == expected
    assert resumed is not None
    resumed.join()
    report = loader.report().as_dict()
    assert report["samples"] == FILES
    assert (report["fallbacks"] > 0) == mounted
    assert agent.alive()


def test_an_agent_that_dies_before_the_next_epoch_with_a_new_pipeline(root: Path, agent: Agent, make: Any) -> None:
    """The handshake fails; trying again must not go on with the old pipeline."""
    options = OffloadOptions(connect_timeout_s=0.5)
    dataset = folder(root)
    patient = OffloadOptions(connect_timeout_s=20, agent_missing="raise")
    loader = make(dataset, agent.address(), options=patient)
    samples_of(loader)
    object.__setattr__(patient, "connect_timeout_s", options.connect_timeout_s)
    agent.kill()
    dataset.transform = eval_transform()
    for _ in range(2):
        with pytest.raises(AgentUnreachable):
            iter(loader)
    agent.start()
    object.__setattr__(patient, "connect_timeout_s", 20.0)
    assert samples_of(loader) == samples_of(DataLoader(dataset, 4))


# --- the connection itself ------------------------------------------------------------------------------------


def test_pings_to_a_dead_agent_never_end_an_epoch() -> None:
    """Its queue fills after a thousand of them; then the connection is made anew, and what lay in it is lost."""
    address = Address.parse("tcp://127.0.0.1:9/x")
    session = Session(Terms(address, QUICK, "none", (b"",), (False,), Seed(0), ("file",)))
    try:
        for _ in range(3000):
            session._do([Say(Ping())])
        assert session.connection.reconnects >= 2
        wanted = [Wanted(0, i, 0, "file", str(i)) for i in range(3)]
        batch = BatchId(1, 0, 0)
        session.want(batch, wanted)
        replies = [session.next(batch) for _ in range(session.missing(batch))]
        assert [reply.sample for reply in replies] == [None] * 3
    finally:
        session.close()


def test_an_answer_that_comes_too_late_is_not_taken_for_another_one(root: Path, agent: Agent) -> None:
    connection = Connection(Address.parse(agent.address()), window=1)
    try:
        connection.greet(20.0)
        keys = [os.path.relpath(path, root) for path, _ in ImageFolder(str(root)).samples[:2]]
        agent.pause()
        with pytest.raises(AgentUnreachable):
            connection.file(keys[0], 0.3)
        agent.go_on()
        assert connection.file(keys[1], 10.0) == (root / keys[1]).read_bytes()
    finally:
        connection.close()


def test_a_file_name_that_is_not_utf_8(tmp_path: Path, make: Any) -> None:
    root = make_tree(tmp_path / "tree", 8, classes=2)
    odd = os.fsencode(root) + b"/class_0/\xff\xfe.jpg"
    os.rename(os.fsencode(next(iter((root / "class_0").glob("*.jpg")))), odd)
    with agent_for(root) as agent:
        plain = samples_of(DataLoader(folder(root, eval_transform()), 4))
        for policy in ("no-off", "all-off"):
            for workers in (0, 1):
                loader = make(folder(root, eval_transform()), agent.address(), policy=policy, num_workers=workers)
                assert samples_of(loader) == plain
        remote = RemoteImageFolder(agent.address(), transform=eval_transform(), options=QUICK)
        assert samples_of(make(remote, agent.address())) == plain
        assert digest_of(remote[0][0]) == plain[0][0]
        assert agent.alive()


KILLED = """
import multiprocessing, os, signal, sys

from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader
from tests.support.pictures import eval_transform

if __name__ == "__main__":
    root, agent, method = sys.argv[1:]
    loader = OffloadingDataLoader(
        ImageFolder(root, eval_transform()), 4, num_workers=2, multiprocessing_context=method, agent=agent
    )
    batches = iter(loader)
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_killed_program_end(root: Path, agent: Agent, tmp_path: Path, method: str) -> None:
    """Those of a forkserver, too, which lives as long as they do: the default of Python 3.14. Of two that are spawned,
    one may still be loading its libraries when the program ends."""
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(program), str(root), agent.address(), method]
    done = run_forked(command, env=environment, timeout=120)
    pids = [int(pid) for pid in done.stdout.split()]
    assert done.returncode == -signal.SIGKILL and len(pids) == 2
    until(lambda: not any(map(psutil.pid_exists, pids)), "its workers end")
