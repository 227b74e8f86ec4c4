"""What a sampler may give as an index: the same as in torch's DataLoader, by a plain loader where it is no integer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from sophon_loader.workers.alike import difference
from tests.support.pictures import picture

FILES = 6
NAMES = [f"{number}.png" for number in range(FILES)]


class Named(Dataset[Any]):
    """Its samples go by number, by name, by (number, anything), or many at a time."""

    def __init__(self, root: Path) -> None:
        self.root, self.transform = str(root), v1.Compose([v1.CenterCrop(8), v1.ToTensor()])

    def __len__(self) -> int:
        return FILES

    def key(self, index: Any) -> str:
        return str(index) if isinstance(index, str) else NAMES[index]

    def target(self, index: int) -> int:
        return int(index)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return torch.stack([self[row][0] for row in range(FILES)[index]])
        if isinstance(index, list) or getattr(index, "ndim", False):
            return torch.stack([self[int(row)][0] for row in index])
        one = index[0] if isinstance(index, tuple) else index
        one = NAMES.index(one) if isinstance(one, str) else one
        return self.transform(Image.open(f"{self.root}/{self.key(one)}").convert("RGB")), self.target(one)


@pytest.fixture
def dataset(tmp_path: Path) -> Named:
    for number, name in enumerate(NAMES):
        picture(20, 16, number).save(tmp_path / name)
    return Named(tmp_path)


CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "names": (True, {"sampler": NAMES, "batch_size": 4}),
    "batches of names": (True, {"batch_sampler": [NAMES[:4], NAMES[4:]]}),
    "tuples": (True, {"sampler": [(2, "a"), (1, "b")], "batch_size": 2}),
    "lists": (True, {"batch_sampler": [[[0, 1], [2, 3]]]}),
    "lists without batches": (True, {"sampler": [[0, 1], [2, 3]], "batch_size": None}),
    "slices": (True, {"sampler": [slice(0, 2)], "batch_size": None}),
    "rows of a tensor": (True, {"sampler": torch.arange(6).reshape(3, 2), "batch_size": None}),
    "tensors of one": (True, {"sampler": [torch.tensor([1])], "batch_size": None}),
    "integers of numpy": (False, {"sampler": np.arange(6), "batch_size": 4}),
    "arrays as batches": (False, {"batch_sampler": list(np.arange(6).reshape(2, 3))}),
    "tensors as batches": (False, {"batch_sampler": list(torch.arange(6).reshape(2, 3))}),
    "tuples as batches": (False, {"batch_sampler": [(0, 1), (5, 2)]}),
    "booleans": (False, {"sampler": [True, False], "batch_size": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_any_index_gives_what_it_gives_in_torch(dataset: Named, case: str) -> None:
    plain, arguments = CASES[case]
    loader = OffloadingDataLoader(dataset, **copy.deepcopy(arguments))
    theirs = list(DataLoader(dataset, **copy.deepcopy(arguments)))
    assert difference(list(loader), theirs) is None
    said = [
        note for note in loader.report().notes if "the sampler must give integers to a dataset that is taken" in note
    ]
    assert len(said) == plain


def test_a_later_index_that_is_no_integer(dataset: Named) -> None:
    loader = OffloadingDataLoader(dataset, sampler=[0, "1.png"])
    with pytest.raises(ConfigError, match=r"must all be integers if the first one is, got '1\.png'; give integers"):
        list(loader)
