"""Loaders over pictures in tables and sets: the samples of the files that were put into them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sophon_loader import FileDataset, OffloadingDataLoader, RemoteFiles
from tests.support.agents import Agent, agent_for
from tests.support.lance_sets import write_lance
from tests.support.loaders import QUICK, samples_of
from tests.support.mds import set_of
from tests.support.pictures import make_tree, train_transform

FILES = 30
Labels = Callable[[], list[int]]


def _parquet(root: Path, shards: dict[str, list[Path]], compression: Any) -> tuple[str, Labels]:
    """Tables of 20 and of 10 rows, in row groups of 7; labels come from them, too."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'sophon_loader[tables]'")
    pq = pytest.importorskip("pyarrow.parquet")
    labels = iter(range(FILES))
    for name, paths in shards.items():
        rows = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
        table = pa.table({"image": rows, "label": [next(labels) for _ in rows]})
        pq.write_table(table, root / f"{name}.parquet", compression=compression, row_group_size=7)
    read = pq.read_table
    tables = sorted(root.glob("*.parquet"))
    return f"parquet://{root}/part-{{0..1}}.parquet", lambda: read(tables, columns=["label"])["label"].to_pylist()


def _plain(root: Path, shards: dict[str, list[Path]]) -> tuple[str, Labels]:
    return _parquet(root, shards, {"image.bytes": "none"})


def _compressed(root: Path, shards: dict[str, list[Path]]) -> tuple[str, Labels]:
    return _parquet(root, shards, "snappy")


def _mds(root: Path, shards: dict[str, list[Path]]) -> tuple[str, Labels]:
    """A set of two shards, of 20 and of 10 samples."""
    labels = iter(range(FILES))
    samples = {
        name: [[path.read_bytes(), struct.pack("<q", next(labels))] for path in some] for name, some in shards.items()
    }
    set_of(root / "mds", samples, {"image": ("bytes", None), "label": ("int", 8)})
    return f"mds://{root}/mds", lambda: list(range(FILES))


def _lance(root: Path, shards: dict[str, list[Path]]) -> tuple[str, Labels]:
    """A set of two fragments, in data files and files of larger pictures."""
    (values,) = [[path.read_bytes() for path in paths] for paths in shards.values()]
    for some in (values[:20], values[20:]):
        write_lance(root / "part-0.lance", some, inline_size_threshold=700)
    return f"lance://{root}/part-0.lance", lambda: list(range(FILES))


class Served:
    """An agent with such an export, a folder with its pictures in files, and their labels."""

    def __init__(self, agent: Agent, files: Path, labels: Labels) -> None:
        self.address = agent.address("d")
        self.files = files
        self.labels = labels


@pytest.fixture(scope="module", params=[(_plain, 20), (_compressed, 20), (_mds, 20), (_lance, FILES)])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("tables")
    paths = sorted(path for path in make_tree(root / "tree", FILES).rglob("*.*"))
    make, first = request.param
    shards = {name: some for name, some in (("part-0", paths[:first]), ("part-1", paths[first:])) if some}
    for name, some in shards.items():
        (root / "files" / name).mkdir(parents=True)
        for row, path in enumerate(some):
            (root / "files" / name / f"{row:08}{path.suffix}").write_bytes(path.read_bytes())
    location, labels = make(root, shards)
    with agent_for({"d": location}, "--index-folder", str(root / "indexes")) as running:
        yield Served(running, root / "files", labels)


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
def test_same_samples_as_of_files(served: Served, policy: str) -> None:
    labels = iter(served.labels())
    remote = RemoteFiles(served.address, train_transform(), target=lambda members: next(labels), options=QUICK)
    files = sorted(str(path.relative_to(served.files)) for path in served.files.rglob("0*.*"))
    here = FileDataset(served.files, files, list(range(FILES)), train_transform())
    assert remote.keys == files and remote.targets == list(range(FILES))
    expected = _epoch(here, None, "no-off")
    assert _epoch(remote, served.address, policy) == expected
    assert _epoch(here, served.address, policy) == expected
