"""A cache on this host beside what else a loader may have: a log, agents with different files, a framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from sophon_loader import OffloadingDataLoader
from sophon_loader.cache import worker_cache
from tests.e2e.test_shards import PARTS, shard
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import samples_of
from tests.support.pictures import eval_transform, folder, make_tree
from tests.support.replicas import PATIENT

FILES = 32


@pytest.fixture(autouse=True)
def files_of_today_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("YOUNG_S", "BEHIND_S"):
        monkeypatch.setattr(worker_cache, name, 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "photos", FILES, plain=True)


@pytest.fixture
def shards(root: Path, tmp_path: Path) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        roots = [shard(root, tmp_path, number, PARTS["by file"]) for number in range(2)]
        yield [stack.enter_context(agent_for({EXPORT: one})) for one in roots]


@pytest.mark.parametrize("policy", ["no-off", "auto"])
def test_shards_and_a_log(root: Path, shards: list[Agent], tmp_path: Path, policy: str) -> None:
    expected = samples_of(DataLoader(folder(root, eval_transform()), 4))
    options = replace(PATIENT, cache=str(tmp_path / "cache"), cache_gb=0.1, log=str(tmp_path / "log.jsonl"))
    loader = OffloadingDataLoader(
        folder(root, eval_transform()),
        4,
        agent=[one.address() for one in shards],
        policy=policy,
        num_workers=2,
        options=options,
    )
    try:
        assert [samples_of(loader) for _ in range(3)] == [expected] * 3
        if policy == "no-off":
            report = loader.report().as_dict()
            assert (report["cached"], report["fallbacks"]) == (FILES, 0)
    finally:
        loader.close()
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]


def test_accelerate(root: Path, tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from sophon_loader.integrations.accelerate import offloading

    plain = DataLoader(folder(root, eval_transform()), 4)
    expected = samples_of(plain)
    prepared: Any = accelerate.Accelerator(cpu=True).prepare(plain)
    with agent_for({EXPORT: root}) as agent:
        options = replace(PATIENT, cache=str(tmp_path / "cache"), cache_gb=0.1)
        loader = offloading(prepared, agent=agent.address(), policy="no-off", options=options)
        try:
            assert [samples_of(loader) for _ in range(2)] == [expected] * 2
            assert loader.report().as_dict()["cached"] == FILES
        finally:
            loader.close()
