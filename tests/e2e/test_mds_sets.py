"""Loaders over pictures in MDS shards: the samples of the files that were put into them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sophon_loader import FileDataset, OffloadingDataLoader, RemoteFiles
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.mds import set_of
from tests.support.pictures import make_tree, train_transform

FILES = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of two shards, of 20 and of 10 samples, and with their pictures in files."""
    root = tmp_path_factory.mktemp("sets")
    paths = sorted(path for path in make_tree(root / "tree", FILES).rglob("*.*"))
    shards: dict[str, list[list[bytes]]] = {}
    for number, path in enumerate(paths):
        name = f"shard.{number // 20:05}"
        samples = shards.setdefault(name, [])
        file = root / "files" / name / f"{len(samples):08}{path.suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.read_bytes())
        samples.append([path.read_bytes(), struct.pack("<q", number)])
    set_of(root / "mds", shards, {"image": ("bytes", None), "label": ("int", 8)})
    return root


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    with agent_for({"d": f"mds://{root}/mds"}, "--index-folder", str(root / "indexes")) as running:
        yield running


def _epoch(dataset: Any, address: str | None, policy: str) -> list[tuple[str, Any]]:
    order = torch.Generator().manual_seed(5)
    loader = OffloadingDataLoader(
        dataset, 7, agent=address, policy=policy, seed=3, shuffle=True, generator=order, options=QUICK
    )
    try:
        return samples_of(loader)
    finally:
        loader.close()


@pytest.mark.parametrize("policy", ["no-off", "all-off", "auto"])
def test_same_samples_as_of_files(root: Path, agent: Agent, policy: str) -> None:
    labels = iter(range(FILES))
    remote = RemoteFiles(agent.address("d"), train_transform(), target=lambda members: next(labels), options=QUICK)
    files = sorted(str(path.relative_to(root / "files")) for path in (root / "files").rglob("0*.*"))
    here = FileDataset(root / "files", files, list(range(FILES)), train_transform())
    assert remote.keys == files and remote.targets == list(range(FILES))
    expected = _epoch(here, None, "no-off")
    assert _epoch(remote, agent.address("d"), policy) == expected
    assert _epoch(here, agent.address("d"), policy) == expected
