"""Tables of Hugging Face's `datasets`, where it is installed: their pictures are deferred, and batches are torch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from sophon_loader import OffloadingDataLoader
from sophon_loader.recording.opener import can_defer
from sophon_loader.workers.alike import difference
from tests.support.pictures import make_tree

datasets: Any = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
pytestmark = pytest.mark.skipif(not can_defer(), reason="our C is not here")
FILES, OTHERS = 12, 3
"""Pictures, and how many at most Pillow decodes."""
augment = transforms.Compose([transforms.RandomResizedCrop(24), transforms.ToTensor()])


def augmented(rows: dict[str, Any]) -> dict[str, Any]:
    return {"pixel_values": [augment(image.convert("RGB")) for image in rows["image"]]}


class Wrapped(Dataset[Any]):
    def __init__(self, table: Any) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        return index, augment(self.table[index]["image"].convert("RGB"))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same pictures as paths, and as bytes in a parquet file."""
    root = tmp_path_factory.mktemp("tables")
    make_tree(root / "photos", FILES)
    files = sorted(map(str, root.rglob("*.*")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)  # else it asks its server
        folder = datasets.load_dataset("imagefolder", data_dir=str(root / "photos"), cache_dir=str(root / "cache"))
        rows = {"image": [{"bytes": Path(file).read_bytes(), "path": None} for file in files]}
        features = datasets.Features({"image": datasets.Image()})
        datasets.Dataset.from_dict(rows, features).to_parquet(str(root / "a.parquet"))
        table = datasets.load_dataset("parquet", data_files=str(root / "a.parquet"), cache_dir=str(root / "cache"))
    return {"imagefolder": folder["train"], "parquet": table["train"]}


def as_list(rows: list[Any]) -> list[Any]:
    return rows


USES: dict[str, Callable[[Any], Any]] = {
    "with_transform": lambda table: table.with_transform(augmented),
    "shuffled and selected": lambda table: table.shuffle(seed=3).select(range(9)).with_transform(augmented),
    "with_format": lambda table: table.with_format("torch"),
    "wrapped": Wrapped,
}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["imagefolder", "parquet"])
def test_batches_are_torchs(tables: dict[str, Any], kind: str, use: str, num_workers: int) -> None:
    arguments: dict[str, Any] = {"batch_size": 4, "shuffle": True, "num_workers": num_workers, "collate_fn": as_list}
    table = USES[use](tables[kind])
    torch.manual_seed(5)
    expected = list(DataLoader(table, **arguments))
    torch.manual_seed(5)
    loader = OffloadingDataLoader(table, **arguments)
    assert difference(list(loader), expected) is None
    report = loader.report().as_dict()
    assert report["fused"] >= len(table) - OTHERS, report
