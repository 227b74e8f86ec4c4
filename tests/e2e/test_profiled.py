"""The ranges by which profilers know how long a training waits for its loader."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from sophon_loader import OffloadingDataLoader
from sophon_loader.torch_internals.profiler_ranges import FINISHING, RECEIVING, WAITING, profiler_range
from tests.support.pictures import folder


def ranges(batches: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in batches:
            pass
    return [one.name for one in found.events() if one.name.startswith("enumerate(DataLoader)#")]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("plain", [False, True])
def test_they_are_those_of_torch(root: Path, plain: bool, workers: int) -> None:
    dataset: Any = TensorDataset(torch.arange(8)) if plain else folder(root)
    expected, found = (
        ranges(iter(make(dataset, 4, num_workers=workers))) for make in (DataLoader, OffloadingDataLoader)
    )
    found = [name for name in found if name.endswith(".__next__")]  # as TensorBoard's plugin looks for it
    assert found == expected and len(set(found)) == 1


def test_waiting_and_receiving_are_told_apart(root: Path) -> None:
    loader = OffloadingDataLoader(folder(root), 4, num_workers=1)
    names = ranges(iter(loader))
    assert names.count(RECEIVING) == len(loader) <= names.count(WAITING)


def test_the_tail_is_a_range_that_counts_as_the_loader_s(root: Path) -> None:
    loader = OffloadingDataLoader(folder(root), 4, num_workers=0, tail="cpu")
    names = ranges(iter(loader))
    assert names.count(FINISHING) == len(loader)
    assert FINISHING.startswith("enumerate(DataLoader)#") and FINISHING.endswith(".__next__")


def test_they_lie_in_the_range_of_torch(root: Path) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        list(OffloadingDataLoader(folder(root), 4, num_workers=1))
    inner = [one for one in found.events() if one.name in (WAITING, RECEIVING)]
    assert inner and all("_MultiProcessingDataLoaderIter.__next__" in one.cpu_parent.name for one in inner)


def test_without_a_profiler_there_is_no_range() -> None:
    assert profiler_range(WAITING) is profiler_range(FINISHING)


def test_a_worker_that_dies_is_noticed_under_a_profiler(root: Path) -> None:
    batches = iter(OffloadingDataLoader(folder(root, Dies()), 4, num_workers=1))
    with (
        profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(RuntimeError, match=r"worker .* exited unexpectedly"),
    ):
        list(batches)


class Dies:
    """A transform that ends its process."""

    def __call__(self, image: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
