"""Loaders over a bucket whose server goes away in mid-epoch: they wait, for a limited time, and nobody else does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from sophon_loader.errors import SampleUnreadable
from sophon_loader.wire.messages import Failed
from tests.e2e.test_other_agent import modules
from tests.support import seaweed
from tests.support.agents import ROOT, Agent, fetch
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, make_tree, train_transform
from tests.support.seaweed import Proxy, Seaweed

FILES = 80
"""More than an agent fetches at once."""
GONE_S = {"stopped": 12.0, "killed": 5.0}
"""After how long it comes back; to start anew takes it 15 s more."""
SHORT_AWAY_S = 20.0
"""In place of the agent's `AWAY_S`, a minute."""
LESS_PATIENT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from storage_agent.stores.buckets import outages
outages.AWAY_S = {SHORT_AWAY_S}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("far") / "train", FILES)


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with seaweed.for_tests(tmp_path_factory.mktemp("server")) as running:
        for bucket in ("photos", "others"):
            running.bucket(bucket)
            running.put_tree(bucket, root)
        yield running


@pytest.fixture(scope="module")
def proxy(server: Seaweed) -> Iterator[Proxy]:
    with Proxy(server.endpoint) as running:
        yield running


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def agent_with(exports: dict[str, str], environment: dict[str, str], log: Path, modules: Path | None = None) -> Agent:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        indexes = log.parent / "indexes"
        return Agent(exports, "--end-with-stdin", "--index-folder", str(indexes), log=log, modules=modules)


def epoch_of(dataset: Any, address: str | None, policy: str) -> Any:
    return OffloadingDataLoader(dataset, 4, agent=address, policy=policy, seed=3, options=QUICK)


@pytest.fixture(scope="module")
def reference(root: Path) -> list[tuple[str, Any]]:
    return samples_of(epoch_of(folder(root), None, "no-off"))


@pytest.mark.parametrize(("how", "policy"), [("stopped", "all-off"), ("killed", "no-off")])
def test_a_store_that_is_away_for_a_while(
    server: Seaweed, reference: list[Any], log: Path, how: str, policy: str
) -> None:
    """The epoch goes on as if nothing had been, and a sample that is read without a loader comes, too."""
    agent = agent_with({"d": "s3://photos"}, server.environment(), log)
    try:
        remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
        expected = RemoteImageFolder(agent.address("d"), options=QUICK)[FILES - 1]
        loader = epoch_of(remote, agent.address("d"), policy)
        batches = iter(loader)
        found = samples_of([next(batches)])
        go_away, come_back = (server.pause, server.go_on) if how == "stopped" else (server.kill, server.start)
        go_away()
        back = threading.Timer(GONE_S[how], come_back)
        back.start()
        alone: list[Any] = []
        reader = threading.Thread(
            target=lambda: alone.append(RemoteImageFolder(agent.address("d"), options=QUICK)[FILES - 1])
        )
        reader.start()
        away = threading.Event()
        watching = threading.Thread(target=lambda: _watch(agent, back, away))
        watching.start()
        found += samples_of(batches)
        for thread in (back, reader, watching):
            thread.join()
        assert found == reference and alone == [expected]
        assert away.is_set() and agent.status()["stores_away"] == 0
        loader.close()
        assert "SampleUnreadable" not in agent.errors() and "refused" not in agent.errors(), agent.errors()
        assert agent.errors().count("store away location=s3://photos reason=") == 1, agent.errors()
        assert agent.errors().count("store back location=s3://photos after=") == 1, agent.errors()
    finally:
        server.go_on()
        agent.end()


def _watch(agent: Agent, until: threading.Timer, away: threading.Event) -> None:
    while not until.finished.is_set():
        if agent.status()["stores_away"] == 1:
            away.set()
        time.sleep(0.5)


def test_a_store_that_is_gone_for_good(
    root: Path, server: Seaweed, proxy: Proxy, reference: list[Any], log: Path, tmp_path: Path
) -> None:
    """Its loader hears of it within the limit, and those of other exports do not notice."""
    exports = {"d": "s3://photos", "other": "s3://others", "near": str(root)}
    less_patient = modules(tmp_path, LESS_PATIENT)
    agent = agent_with(exports, server.environment(proxy.endpoint), log, less_patient)
    try:
        datasets = {name: RemoteImageFolder(agent.address(name), train_transform(), options=QUICK) for name in exports}
        proxy.gone = "photos"
        waiting, since_s = agent.client(), time.monotonic()
        waiting.send(fetch([os.path.relpath(path, root) for path, _ in folder(root).samples]))
        epochs_s = []
        while not waiting.socket.poll(0) and time.monotonic() < since_s + 2 * SHORT_AWAY_S:
            for name in ("other", "near"):
                begun_s = time.monotonic()
                assert samples_of(epoch_of(datasets[name], agent.address(name), "all-off")) == reference
                epochs_s.append(time.monotonic() - begun_s)
            time.sleep(1.0)
        failures = [waiting.receive()[0] for _ in range(FILES)]
        took_s = time.monotonic() - since_s
        assert all(isinstance(one, Failed) and "s3://photos: " in one.text for one in failures), failures
        assert SHORT_AWAY_S - 5 < took_s < SHORT_AWAY_S + 10, took_s
        assert len(epochs_s) >= 6 and max(epochs_s) < 15, epochs_s
        for policy in ("no-off", "all-off"):
            begun_s = time.monotonic()
            with pytest.raises(SampleUnreadable, match=r"s3://photos: .*, for \d\d s"):
                samples_of(epoch_of(datasets["d"], agent.address("d"), policy))
            assert time.monotonic() - begun_s < 10, "it is known to be away"
        proxy.gone = ""
        assert samples_of(epoch_of(datasets["d"], agent.address("d"), "all-off")) == reference
        assert agent.status()["stores_away"] == 0
    finally:
        agent.end()
