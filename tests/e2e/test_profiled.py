"""The ranges by which profilers know how long a training waits for its loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from sophon_loader import OffloadingDataLoader
from tests.support.pictures import folder


def ranges(batches: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in batches:
            pass
    return [one.name for one in found.events() if one.name.startswith("enumerate(DataLoader)")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("plain", [False, True])
def test_they_are_those_of_torch(root: Path, plain: bool, workers: int) -> None:
    dataset: Any = TensorDataset(torch.arange(8)) if plain else folder(root)
    expected, found = (
        ranges(iter(make(dataset, 4, num_workers=workers))) for make in (DataLoader, OffloadingDataLoader)
    )
    assert found == expected and len(set(found)) == 1
