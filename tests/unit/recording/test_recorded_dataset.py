"""Random numbers of samples whose indices come as `Streamed`: those of a batch that torch's own classes divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, StackDataset, Subset

from sophon_loader.pipeline.randomness import Seed
from sophon_loader.recording.picture_counts import PictureCounts
from sophon_loader.recording.recorded_dataset import RecordedDataset, Streamed


class Draws(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, int(torch.randint(1 << 30, ()))


class InGroups(Draws):
    def __getitems__(self, indices: list[int]) -> Any:
        return tuple(self[index] for index in indices)


def batch_of(dataset: Any, *indices: int) -> Any:
    seed = Seed(3)
    recorded = RecordedDataset(dataset, PictureCounts(workers=1), defers=False)
    return recorded.__getitems__([Streamed(one, seed.draw(0, one, 0)) for one in indices])


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(Draws(), range(8)),
        Subset(Subset(Draws(), range(8)), [7, 6, 5, 4, 3, 2, 1, 0]),
        StackDataset(Draws(), Subset(Draws(), range(8))),
        StackDataset(one=Draws(), other=Draws()),
    ],
    ids=["subset", "of a subset", "stack", "named stack"],
)
def test_torchs_own_classes_leave_each_sample_its_numbers(dataset: Any) -> None:
    assert batch_of(dataset, 1, 5, 2) == [batch_of(dataset, one)[0] for one in (1, 5, 2)]


@pytest.mark.parametrize("inside", [False, True], ids=["itself", "in a subset"])
def test_a_batch_made_by_the_users_own_code_has_numbers_of_its_first_sample(inside: bool) -> None:
    dataset: Any = Subset(InGroups(), range(8)) if inside else InGroups()
    found = batch_of(dataset, 1, 5)
    assert type(found) is tuple and found[0] == batch_of(dataset, 1)[0] and found[1] != batch_of(dataset, 5)[0]
