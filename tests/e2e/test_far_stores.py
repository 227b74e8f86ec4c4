"""Loaders over a bucket that an agent serves: the samples of the folder, and words where objects or rights are gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import SampleMissing, SampleUnreadable
from tests.support import seaweed
from tests.support.agents import ROOT, Agent, agent_for, fetch, run_command
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, make_tree, train_transform
from tests.support.seaweed import READER_SECRET, Proxy, Seaweed

FILES = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("far") / "train", FILES)


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed.for_tests(tmp_path_factory.mktemp("server")) as running:
        running.bucket("photos")
        running.put_tree("photos", root.parent)
        yield running


@pytest.fixture(scope="module")
def proxy(server: Seaweed) -> Iterator[Proxy]:
    with Proxy(server.endpoint) as running:
        yield running


@pytest.fixture(scope="module")
def agent(proxy: Proxy, server: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent that reads through the proxy."""
    indexes = tmp_path_factory.mktemp("indexes")
    indexes.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment(proxy.endpoint).items():
            patch.setenv(name, value)
        with agent_for({"d": "s3://photos/train"}, "--index-folder", str(indexes)) as running:
            yield running


@pytest.fixture
def environment(server: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)


def _two_epochs(dataset: Any, address: str | None, policy: str) -> list[tuple[str, Any]]:
    order = torch.Generator().manual_seed(5)
    loader = OffloadingDataLoader(
        dataset, 7, agent=address, policy=policy, seed=3, shuffle=True, generator=order, options=QUICK
    )
    try:
        return samples_of(loader) + samples_of(loader)
    finally:
        loader.close()


@pytest.fixture(scope="module")
def reference(root: Path) -> list[tuple[str, Any]]:
    """The samples of two epochs without an agent."""
    return _two_epochs(folder(root), None, "no-off")


@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
def test_same_samples(root: Path, agent: Agent, reference: list[Any], policy: str) -> None:
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    here = folder(root)
    assert remote.classes == here.classes and remote.targets == here.targets
    assert _two_epochs(remote, agent.address("d"), policy) == reference
    assert _two_epochs(here, agent.address("d"), policy) == reference


@pytest.mark.parametrize("how", ["cut", "503", "slow down", "repeat"])
@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_same_samples_where_answers_are_spoilt(
    agent: Agent, proxy: Proxy, reference: list[Any], how: seaweed.Spoil, policy: str
) -> None:
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    proxy.spoil(how)
    assert _two_epochs(remote, agent.address("d"), policy) == reference
    assert not proxy.waiting, "it was spoilt"


def test_a_store_that_wants_fewer_requests_for_seconds(agent: Agent, proxy: Proxy) -> None:
    remote = RemoteImageFolder(agent.address("d"))
    expected = remote[0]
    before = agent.status()
    proxy.spoil("slow down", 9)
    assert remote[0] == expected
    assert not proxy.waiting
    after = agent.status()
    assert after["store_slow_downs"] - before["store_slow_downs"] == 9
    assert 0 < before["store_cpu_s"] < after["store_cpu_s"]


def test_a_body_that_is_always_cut(agent: Agent, proxy: Proxy) -> None:
    """It ends in an error in time, and nothing of it remains."""
    remote = RemoteImageFolder(agent.address("d"))
    expected = remote[0]
    proxy.spoil("cut", 1000)
    try:
        with pytest.raises(SampleUnreadable, match="s3://photos/train: "):
            remote[0]
    finally:
        proxy.unspoil()
    assert remote[0] == expected


def test_an_answer_that_never_comes(agent: Agent, proxy: Proxy, reference: list[Any]) -> None:
    """Another one is asked for, before the loader does."""
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    proxy.spoil("stall")
    assert _two_epochs(remote, agent.address("d"), "all-off") == reference
    assert not proxy.waiting


@pytest.mark.parametrize("policy", ["no-off", "all-off"])
def test_many_objects_are_fetched_at_once_and_each_once(
    agent: Agent, proxy: Proxy, reference: list[Any], policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    monkeypatch.setattr(proxy, "delay_s", 0.2)
    monkeypatch.setattr(proxy, "requests", 0)
    monkeypatch.setattr(proxy, "most", 0)
    assert _two_epochs(remote, agent.address("d"), policy) == reference
    assert proxy.requests == 2 * FILES
    assert proxy.most >= 8, "one worker and two readers would have three"


def test_a_fetching_process_that_dies(agent: Agent, reference: list[Any]) -> None:
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    (process,) = [one for one in agent.descendants() if "storage_agent.stores.buckets.fetch_child" in one.cmdline()]
    process.kill()
    assert _two_epochs(remote, agent.address("d"), "all-off") == reference


def test_what_the_processes_hold(environment: None, tmp_path: Path) -> None:
    """Credentials and the store's library: the fetching process alone, and the agent, which was given the former."""
    exports = {"d": "s3://photos/train"}
    with agent_for(exports, "--index-folder", str(tmp_path / "indexes"), warm=False) as agent:
        agent.ready()
        others = agent.descendants()
        assert len(others) >= 3, "a forkserver, a worker, and the fetching process"
        for process in others:
            is_fetching = "storage_agent.stores.buckets.fetch_child" in process.cmdline()
            assert (READER_SECRET in process.environ().values()) == is_fetching, process
            libraries = {Path(one.path).name for one in process.memory_maps()}
            assert ("_obstore.abi3.so" in libraries) == is_fetching, process
        libraries = {Path(one.path).name for one in psutil.Process(agent.pid).memory_maps()}
        assert "_obstore.abi3.so" not in libraries
    agent.assert_gone()


def test_no_more_is_fetched_for_files_than_a_slow_wire_has_use_for(
    server: Seaweed, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else slow loaders would fill what there is to hold objects, and those of others be read one by one."""
    server.bucket("many")
    count = 800
    for number in range(count):
        server.put("many", f"{number}.bin", bytes(40_000))
    for name, value in server.environment(proxy.endpoint).items():
        monkeypatch.setenv(name, value)
    with agent_for({"d": "s3://many"}, "--index-folder", str(tmp_path / "indexes"), "--limit-mbit", "4") as agent:
        client, before = agent.client(), proxy.requests
        client.send(fetch([f"{number}.bin" for number in range(count)]))
        client.samples(30)
        assert proxy.requests - before < count / 2
        client.close()


def test_objects_that_change_or_go(
    root: Path, server: Seaweed, environment: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server.bucket("changing")
    server.put_tree("changing", root)
    with agent_for({"d": "s3://changing"}, "--index-folder", str(tmp_path / "indexes")) as agent:
        remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
        first, second = (os.path.relpath(path, root) for path, _ in folder(root).samples[:2])
        data = (root / first).read_bytes()
        server.put("changing", first, data[:-1] + bytes([data[-1] ^ 1]))
        server.remove("changing", second)
        for _ in range(2):
            with pytest.raises(SampleUnreadable, match=r"has changed in s3://changing; restart the agent"):
                remote[0]
            with pytest.raises(SampleMissing, match=r"which s3://changing no longer has; restart the agent"):
                remote[1]
        remote[2]
        server.put("changing", first, data + data)
        with pytest.raises(SampleUnreadable, match="has changed in s3://changing"):
            remote[0]
        loader = OffloadingDataLoader(remote, 4, agent=agent.address("d"), policy="all-off", options=QUICK)
        # Both are in the first batch; which answer comes first is open.
        with pytest.raises((SampleUnreadable, SampleMissing), match=r"has changed|no longer has"):
            samples_of(loader)
        loader.close()
        assert agent.alive()
    with agent_for({"d": "s3://changing"}, "--index-folder", str(tmp_path / "indexes")) as agent:
        assert len(RemoteImageFolder(agent.address("d"), options=QUICK)) == FILES - 1
    assert READER_SECRET not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("location", "variable", "value", "text"),
    [
        (
            "s3://photos/train",
            "AWS_SECRET_ACCESS_KEY",
            "wrong",
            "403 SignatureDoesNotMatch; set AWS_ACCESS_KEY_ID and ",
        ),
        ("s3://photos/train", "AWS_ACCESS_KEY_ID", "wrong", "403 InvalidAccessKeyId; set AWS_ACCESS_KEY_ID and "),
        ("s3://photos/train", "AWS_SKIP_SIGNATURE", "true", "403 AccessDenied; set AWS_ACCESS_KEY_ID and "),
        ("s3://photos/train", "AWS_ENDPOINT_URL", "http://127.0.0.1:1", "it cannot be reached; see that this host "),
        ("s3://no-photos", "AWS_REGION", "us-east-1", "404 NoSuchBucket; correct its name; set AWS_ENDPOINT_URL if "),
        ("s3://photos/none", "AWS_REGION", "us-east-1", "got none at s3://photos/none; correct the prefix"),
        (
            "s3:photos",
            "AWS_REGION",
            "us-east-1",
            "must be a folder or one of tar://, zip://, parquet://, mds://, lance://, s3://, gs://, az://",
        ),
        ("s3://key:secret@photos", "AWS_REGION", "us-east-1", "without a user, a password or options"),
        ("az://photos", "AWS_REGION", "us-east-1", "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_refusals_at_the_start(
    environment: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    location: str,
    variable: str,
    value: str,
    text: str,
) -> None:
    monkeypatch.setenv(variable, value)
    done = run_command("serve", "--export", f"d={location}", "--index-folder", str(tmp_path / "indexes"))
    assert done.returncode == 1 and text in done.stderr, done.stderr
    assert READER_SECRET not in done.stderr + done.stdout and done.stderr.count("\n") == 1, done.stderr


def test_without_the_package(tmp_path: Path) -> None:
    code = "import sys; sys.modules['obstore'] = None; from storage_agent.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "--export", "d=s3://photos"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "install it: pip install 'sophon_loader[stores]'" in done.stderr, done.stderr
