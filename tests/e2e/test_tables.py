"""Loaders over pictures in parquet tables: the samples of the files that were put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sophon_loader import FileDataset, OffloadingDataLoader, RemoteFiles
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import make_tree, train_transform

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sophon_loader[tables]'")
pq = pytest.importorskip("pyarrow.parquet")
FILES = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables of 20 and of 10 rows, in row groups of 7, and with their pictures in files."""
    root = tmp_path_factory.mktemp("tables")
    paths = sorted(path for path in make_tree(root / "tree", FILES).rglob("*.*"))
    for number, some in enumerate((paths[:20], paths[20:])):
        shard = f"train-{number:05}"
        (root / "files" / shard).mkdir(parents=True)
        rows = [{"bytes": path.read_bytes(), "path": path.name} for path in some]
        for row, path in enumerate(some):
            (root / "files" / shard / f"{row:08}{path.suffix}").write_bytes(path.read_bytes())
        table = pa.table({"image": rows, "label": [number * 20 + row for row in range(len(rows))]})
        pq.write_table(table, root / f"{shard}.parquet", compression={"image.bytes": "none"}, row_group_size=7)
    return root


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    location = f"parquet://{root}/train-{{00000..00001}}.parquet"
    with agent_for({"d": location}, "--index-folder", str(root / "indexes")) as running:
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
    """Labels come from the tables, too, in the order of their rows."""
    labels = iter(pq.read_table(sorted(root.glob("*.parquet")), columns=["label"])["label"].to_pylist())
    remote = RemoteFiles(agent.address("d"), train_transform(), target=lambda members: next(labels), options=QUICK)
    files = sorted(str(path.relative_to(root / "files")) for path in (root / "files").rglob("*.*"))
    here = FileDataset(root / "files", files, list(range(FILES)), train_transform())
    assert remote.keys == files and remote.targets == list(range(FILES))
    expected = _epoch(here, None, "no-off")
    assert _epoch(remote, agent.address("d"), policy) == expected
    assert _epoch(here, agent.address("d"), policy) == expected
