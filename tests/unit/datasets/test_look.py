"""Whether a dataset has changed: every change shows, and what is kept to see it does not grow with the dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader

from sophon_loader.datasets.look import look, same_look

SAMPLES = 40_000


class ToldFolder(DatasetFolder):
    """A DatasetFolder that has been told its samples."""

    def __init__(self, samples: list[Any]) -> None:
        self.root = "/nowhere"
        self.loader = default_loader
        self.samples = samples


def folder(samples: int = SAMPLES) -> ToldFolder:
    return ToldFolder([(f"/nowhere/a/{number}.jpg", number % 10) for number in range(samples)])


def kept_nbytes(found: Any) -> int:
    """Of a look, with what its lists hold."""
    inner = sum(map(kept_nbytes, found)) if isinstance(found, list) else 0
    return inner if callable(found) else inner + sys.getsizeof(found)


@pytest.mark.parametrize("indices", [None, range, lambda n: list(range(n)), torch.arange])
def test_what_is_kept_does_not_grow_with_the_dataset(indices: Callable[[int], Any] | None) -> None:
    few, many = (look(folder(n) if indices is None else Subset(folder(1), indices(n))) for n in (100, SAMPLES))
    assert kept_nbytes(few) == kept_nbytes(many) < 2000


def change(row: int, path: str, label: Any) -> Callable[[list[Any]], None]:
    """Another sample in that row."""

    def changed(samples: list[Any]) -> None:
        samples[row] = (path, label)

    return changed


@pytest.mark.parametrize("changed", [
    change(0, "/nowhere/a/0.jpg", 1), change(SAMPLES - 1, "/nowhere/a/x.jpg", 9), change(20_000, "/nowhere/a/1.jpg", 0),
    change(3, "/nowhere/a/3.jpg", 1 << 80), change(3, "/nowhere/a/3.jpg", 3.5), change(3, "/nowhere/a/3.jpg", [3]),
    list.reverse, list.pop, lambda samples: samples.append(samples[0]), lambda samples: samples.clear(),
])  # fmt: skip
def test_every_change_of_the_samples_shows(changed: Callable[[list[Any]], None]) -> None:
    dataset = folder()
    before = look(dataset)
    assert same_look(before, look(dataset)) and same_look(before, look(folder()))
    changed(dataset.samples)
    assert not same_look(before, look(dataset))


@pytest.mark.parametrize(("before", "after"), [(-1, -2), (0, (1 << 61) - 1), (1 << 80, (1 << 80) + (1 << 61) - 1)])
def test_labels_show_that_python_hashes_alike(before: int, after: int) -> None:
    assert hash(before) == hash(after)
    assert not same_look(look(ToldFolder([("a", before)])), look(ToldFolder([("a", after)])))


def test_labels_that_are_no_ints_are_compared_themselves() -> None:
    dataset = ToldFolder([("a", torch.zeros(1)), ("b", [1, 2])])
    before = look(dataset)
    assert same_look(before, look(dataset))
    dataset.samples[1] = ("b", [1, 3])
    assert not same_look(before, look(dataset))


@pytest.mark.parametrize(("before", "after"), [
    ([1, 2], [1, 3]), ([1, 2], [2, 1]), ([1, 2], [1]), ([], [0]), (range(3), range(4)), (["a"], ["b"]),
    (np.array([1, 2]), np.array([2, 1])), (torch.tensor([1, 2]), torch.tensor([1, 3])), ([1, 2], [[1], [2]]),
    ([1.5], [1.2]), ([[1], [2, 3]], [[1], [2, 4]]),
])  # fmt: skip
def test_every_change_of_a_subset_s_indices_shows(before: Any, after: Any) -> None:
    whole = folder(4)
    assert same_look(look(Subset(whole, before)), look(Subset(whole, before)))
    assert not same_look(look(Subset(whole, before)), look(Subset(whole, after)))
