"""The first warning of a dataset that gains nothing by its kind says so, and what could be done."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset
from torchvision.datasets import CocoDetection, FakeData, ImageFolder

from sophon_loader.datasets import without_gain
from sophon_loader.datasets.protocol import NotOffloadable
from sophon_loader.datasets.taking_apart import offloadable
from sophon_loader.datasets.without_gain import why_no_gain

cv2: Any = types.ModuleType("cv2")
waves: Any = types.ModuleType("soundfile")


class ByCv2(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return cv2.imread(str(index))


class ByImport(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        import h5py  # type: ignore[import-not-found,import-untyped,unused-ignore]

        return h5py.File(str(index))


class Recordings(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return waves.read(str(index))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[Any]:
        yield 1


class Lines(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        return sys.maxsize


def empty(cls: type[Any]) -> Any:
    """One of a class, without the files that its constructor looks for."""
    return object.__new__(cls)


@pytest.mark.parametrize(
    ("dataset", "kind", "remedy"),
    [
        (TensorDataset(torch.arange(3)), "memory", "write single pictures to files"),
        (Stream(), "stream", "a __getitem__ over files"),
        (FakeData(3), "memory", "write single pictures to files"),
        (ByCv2(), "opener", "PIL.Image.open"),
        (ByImport(), "records", "write single pictures to files"),
        (Recordings(), "audio", "nothing can be done"),
        (Subset(ByCv2(), []), "opener", "PIL.Image.open"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else None,
)
def test_the_kind_and_what_could_be_done_are_named(dataset: Any, kind: str, remedy: str) -> None:
    with pytest.raises(NotOffloadable) as caught:
        offloadable(dataset)
    says = str(caught.value)
    why = without_gain._KINDS[kind][0]
    assert f"runs as in DataLoader: {why}, so nothing is gained by an agent; " in says and remedy in says
    assert "key(index)" not in says, "members that would change nothing"


def test_a_class_that_tells_no_kind_hears_what_its_members_would_not_change() -> None:
    """Nor does one with boxes or masks, whose pictures an agent is asked for one by one."""
    assert not any(map(why_no_gain, (Lines(), empty(ImageFolder), empty(CocoDetection))))
    with pytest.raises(NotOffloadable, match=r"key\(index\).*of use only if a sample is one picture.* and its label"):
        offloadable(Lines())


def test_torchvision_has_the_classes_that_are_named() -> None:
    from torchvision import datasets

    names = {name for some in without_gain._CLASSES.values() for name in some}
    assert not names - set(datasets.__all__)
