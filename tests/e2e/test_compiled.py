"""A function that iterates over the loader, under torch.compile: its graph breaks there, as at torch's own loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from tests.support.pictures import folder

NUMBERS = TensorDataset(torch.arange(16.0), torch.arange(16))


@pytest.mark.filterwarnings("ignore")  # of dynamo's, about graph breaks
@pytest.mark.parametrize(
    "arguments", [{}, {"num_workers": 1}, {"device_prefetch": 1}], ids=["alone", "workers", "ahead"]
)
@pytest.mark.parametrize("plain", [False, True])
def test_it_runs(root: Path, plain: bool, arguments: dict[str, Any]) -> None:
    dataset: Any = NUMBERS if plain else folder(root, v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]))

    @torch.compile(backend="eager")
    def total(loader: Any) -> torch.Tensor:
        found = torch.zeros(())
        for images, _ in loader:
            found = found + images.sum()
        return found

    @torch.compile(backend="eager")
    def first(batches: Any) -> torch.Tensor:
        images, _ = next(batches)
        return images.sum() * 2

    loader = OffloadingDataLoader(dataset, 4, **arguments)
    expected = [images.sum() for images, _ in DataLoader(dataset, 4)]
    for _ in range(2):
        assert torch.isclose(total(loader), torch.stack(expected).sum())
    batches = iter(loader)
    assert [float(first(batches)) for _ in range(2)] == [2 * float(one) for one in expected[:2]]
