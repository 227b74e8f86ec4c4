"""What taking a dataset apart reads of it, to see later whether that has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import ConcatDataset, Subset
from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder

from sophon_loader.datasets.protocol import OffloadableDataset
from sophon_loader.datasets.remote import RemoteImageFolder


def _nodes(dataset: Any) -> Iterator[Any]:
    """A dataset, and those that Subset and ConcatDataset are made of, down to the ones that hold samples."""
    yield dataset
    inner = [dataset.dataset] if type(dataset) is Subset else dataset.datasets if type(dataset) is ConcatDataset else []
    for one in inner:
        yield from _nodes(one)


def owners(dataset: Any) -> list[Any]:
    """The datasets that hold the transforms."""
    return [node for node in _nodes(dataset) if type(node) not in (Subset, ConcatDataset)]


def look(dataset: Any) -> list[Any]:
    """What `offloadable` reads of a dataset, to be compared with what it will be later, by `same_look`.

    Holds the samples of folders one by one, so that a change in place shows as well.
    """
    return [part for node in _nodes(dataset) for part in _read_of(node)]


def _read_of(node: Any) -> list[Any]:
    if type(node) is Subset:
        return [node.dataset, _kept(node.indices)]
    if type(node) is ConcatDataset:
        return [_kept(node.datasets)]
    if isinstance(node, RemoteImageFolder):
        return [node.address, node.shared_keys, node.shared_targets]
    if isinstance(node, DatasetFolder):
        return [node.root, node.loader, get_image_backend(), _kept(node.samples)]
    return [node.root, len(node)] if isinstance(node, OffloadableDataset) else []


def same_look(one: list[Any], other: list[Any]) -> bool:
    """Whether two looks at a dataset found the same.

    Args:
        one, other: what `look` gave.
    """
    return len(one) == len(other) and all(map(_same_part, one, other))


def _same_part(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and isinstance(one, (list, str, int)) and bool(one == other)
    except ValueError:  # labels whose comparison is no truth value; the same objects were not compared
        return False


def _kept(values: Any) -> Any:
    """A copy of a sequence, as cheap to make and to compare as can be."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
