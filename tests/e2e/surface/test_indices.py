"""What a sampler may give as an index: the same as in torch's DataLoader, by a plain loader where it is no integer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import FileDataset, OffloadingDataLoader
from sophon_loader.datasets.protocol import NotOffloadable
from sophon_loader.datasets.taking_apart import offloadable
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
    "booleans": (True, {"sampler": [True, False], "batch_size": 2}),
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
    with pytest.raises(TypeError, match=r"must all be integers if the first one is, got '1\.png'; give integers"):
        list(loader)


# --- datasets that are lists --------------------------------------------------------------------------------------


def outcome(loader: Any) -> list[Any]:
    """Labels of each batch, or the class of its error, as a loop sees them that skips errors."""
    found: list[Any] = []
    try:
        batches = iter(loader)
        for _ in range(2 * FILES):
            try:
                found.append(next(batches)[1].tolist())
            except StopIteration:
                break
            except Exception as error:
                found.append(next(cls for cls in type(error).__mro__ if cls.__module__ == "builtins"))
    except Exception as error:
        found.append(type(error))
    return found


def listed(root: Path) -> Any:
    paths = [root / name for name in NAMES]
    return FileDataset(root, paths, range(FILES), v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))


def foldered(root: Path) -> Any:
    for number in range(FILES):
        (root / f"class {number}").mkdir(parents=True)
        picture(20, 16, number).save(root / f"class {number}" / "picture.png")
    return ImageFolder(str(root), v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))


class Column:
    """As of a data frame: in one order, and looked up by the labels of its index."""

    def __init__(self, rows: dict[int, int]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, label: int) -> int:
        return self._rows[label]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array([*self._rows.values()], dtype)

    def __iter__(self) -> Any:
        return iter(self._rows.values())


MASK = [False, True, False, True, True, False]
SUBSETS: dict[str, Any] = {
    "a mask": MASK,
    "a mask of numpy": np.array(MASK),
    "a mask of torch": torch.tensor(MASK),
    "a boolean of numpy": [2, np.True_],
    "floats": [0.0, 1.5, 2.0],
    "floats of numpy": np.array([0.0, 1.5]),
    "floats of torch": torch.tensor([0.0, 1.0]),
    "one float": [1, 2, 3.0],
    "text": ["1", "2"],
    "a column": np.array([[1], [2]]),
    "rows": np.array([[1, 2], [3, 4]]),
    "rows of torch": torch.tensor([[1, 2], [3, 4]]),
    "beyond": [1, 2, FILES],
    "huge": [1, 1 << 70],
    "huge of numpy": np.array([1, (1 << 63) + 1], np.uint64),
    "below": [1, -FILES - 1],
    "negative": [-1, -FILES],
    "tensors": [torch.tensor(3), torch.tensor(-2)],
    "numbers of numpy": [np.uint8(3), np.int64(-2)],
    "uint64": np.array([3, 1], np.uint64),
    "a table": {0: 4, 1: 2},
    "a set": {4, 2},
    "by label": Column({2: 4, 1: 2, 0: 0}),
    "a tuple": (4, 2),
}
ENTRIES: dict[str, Any] = {
    "a boolean": True,
    "a boolean of numpy": np.True_,
    "a boolean of torch": torch.tensor(True),
    "a float": 2.0,
    "a float of numpy": np.float64(2),
    "a float of torch": torch.tensor(2.0),
    "text": "2",
    "nothing": None,
    "a tensor": torch.tensor(2),
    "a tensor of one": torch.tensor([2]),
    "an array of one": np.array([2]),
    "a list": [2],
    "negative": -2,
    "below": -FILES - 1,
    "beyond": FILES,
    "huge": 1 << 70,
}


@pytest.mark.parametrize("make", [listed, foldered])
@pytest.mark.parametrize("case", SUBSETS)
def test_a_subset_gives_what_it_gives_in_torch(dataset: Named, tmp_path: Path, case: str, make: Any) -> None:
    subset = Subset(make(tmp_path / "more" if make is foldered else tmp_path), SUBSETS[case])
    for part in (subset, ConcatDataset([subset, subset]), Subset(subset, [1, 0])):
        assert outcome(OffloadingDataLoader(part)) == outcome(DataLoader(part))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("case", ENTRIES)
def test_a_sampler_s_index_gives_what_it_gives_in_torch(
    dataset: Named, tmp_path: Path, case: str, workers: int
) -> None:
    files = listed(tmp_path)
    whole = [files, foldered(tmp_path / "more"), ConcatDataset([files, files]), Subset(files, [3, 1, 0, 5, 2, 2])]
    entry = ENTRIES[case]
    for data in whole[:: 1 + 2 * workers]:
        for order in ([entry, 1], [0, entry, 1]):
            ours = outcome(OffloadingDataLoader(data, sampler=order, num_workers=workers))
            assert ours == outcome(DataLoader(data, sampler=order, num_workers=workers)), (data, order)


def test_a_subset_may_begin_from_the_end_where_its_dataset_s_keys_do(dataset: Named) -> None:
    assert offloadable(Subset(dataset, [-1, 2])).row_of.array.tolist() == [FILES - 1, 2]

    class Counted(Named):
        def key(self, index: Any) -> str:
            return f"{index}.png"

    counted = Counted(Path(dataset.root))
    with pytest.raises(NotOffloadable, match=r"key\(-1\) is not key\(5\)"):
        offloadable(Subset(counted, [-1, 2]))
    assert outcome(OffloadingDataLoader(Subset(counted, [-1, 2]))) == outcome(DataLoader(Subset(counted, [-1, 2])))
    assert outcome(DataLoader(counted, sampler=[0, -1, 1])) == [[0], FileNotFoundError, [1]]
    with pytest.raises(ConfigError, match=r"must not be negative .* key\(-1\) is not key\(5\), got -1; give 5"):
        list(OffloadingDataLoader(counted, sampler=[0, -1, 1]))
