"""Which datasets can be offloaded: taking them apart into arrays that all workers share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset
from torchvision import get_image_backend
from torchvision.datasets import DatasetFolder
from torchvision.datasets.folder import default_loader

from sophon_loader.datasets.protocol import NotOffloadable, Offloadable, OffloadableDataset, Source
from sophon_loader.datasets.remote import RemoteImageFolder
from sophon_loader.errors import ConfigError
from sophon_loader.shared import SharedArray, SharedStrings


def offloadable(dataset: Any) -> Offloadable:
    """Take a dataset apart.

    Args:
        dataset: an ImageFolder, a Subset or ConcatDataset of such, a RemoteImageFolder or an `OffloadableDataset`.

    Raises:
        NotOffloadable: it is none of those that DESIGN names; the text says what is missing.
    """
    owned, of, rows = _parts(dataset)
    sources, owners = zip(*owned, strict=True) if owned else ((), ())
    return Offloadable(sources, SharedArray(of), SharedArray(rows), owners)


_Parts = tuple[list[tuple[Source, Any]], NDArray[np.int16], NDArray[np.int32]]


def _parts(dataset: Any) -> _Parts:
    if type(dataset) is Subset:
        sources, of, rows = _parts(dataset.dataset)
        try:
            chosen = np.asarray(dataset.indices, dtype=np.int64).reshape(-1)
            return sources, of[chosen], rows[chosen]
        except (TypeError, ValueError, IndexError) as error:
            raise NotOffloadable(f"a Subset has indices that its dataset does not have: {error}") from error
    if type(dataset) is ConcatDataset:
        return _joined([_parts(part) for part in dataset.datasets])
    source, length = _source(dataset)
    return [(source, dataset)], np.zeros(length, np.int16), np.arange(length, dtype=np.int32)


def _joined(parts: list[_Parts]) -> _Parts:
    sources: list[tuple[Source, Any]] = []
    of, rows = [], []
    for more, its_of, its_rows in parts:
        of.append(its_of + len(sources))
        rows.append(its_rows)
        sources += more
    if len(sources) > np.iinfo(np.int16).max:
        raise NotOffloadable(f"a ConcatDataset of {len(sources)} folders is more than {np.iinfo(np.int16).max}")
    return sources, np.concatenate(of).astype(np.int16), np.concatenate(rows)


def _source(dataset: Any) -> tuple[Source, int]:
    if isinstance(dataset, RemoteImageFolder):
        _check_own(dataset, RemoteImageFolder)
        target = _IntTargets(dataset.shared_targets)
        return Source(None, dataset.shared_keys, target, dataset.address), len(dataset)
    if isinstance(dataset, DatasetFolder):
        return _folder(dataset), len(dataset)
    if isinstance(dataset, OffloadableDataset):
        return Source(str(dataset.root), _Calls(dataset.key), dataset.target, promised=True), len(dataset)
    raise NotOffloadable(
        f"{type(dataset).__name__} is not an ImageFolder, a Subset or ConcatDataset of such, a RemoteImageFolder, or a "
        "dataset with root, transform, key(index) and target(index)"
    )


def _check_own(dataset: Any, base: type) -> None:
    for name in ("__getitem__", "__len__", "__getitems__"):
        if getattr(type(dataset), name, None) is not getattr(base, name, None):
            raise NotOffloadable(f"{type(dataset).__name__} has a {name} of its own")


def _folder(dataset: Any) -> Source:
    _check_own(dataset, DatasetFolder)
    if dataset.loader is not default_loader or get_image_backend() != "PIL":
        raise NotOffloadable(f"{type(dataset).__name__} does not use torchvision's default loader with Pillow")
    root = os.fspath(dataset.root)
    below = os.path.join(root, "")
    try:
        keys = SharedStrings(map(itemgetter(0), dataset.samples), below)
    except ValueError as error:
        why = f"{type(dataset).__name__} has samples that do not lie below its root {root}"
        raise NotOffloadable(why) from error
    return Source(root, keys, _targets_of(dataset.samples))


def _targets_of(samples: Sequence[tuple[str, Any]]) -> Callable[[int], Any]:
    if set(map(type, map(itemgetter(1), samples))) <= {int}:
        return _IntTargets(SharedArray(np.fromiter(map(itemgetter(1), samples), np.int64, len(samples))))
    return _ObjectTargets([target for _, target in samples])


@dataclass(frozen=True)
class _IntTargets:
    values: SharedArray

    def __call__(self, row: int) -> int:
        return int(self.values.array[row])


@dataclass(frozen=True)
class _ObjectTargets:
    values: list[Any]

    def __call__(self, row: int) -> Any:
        return self.values[row]


@dataclass(frozen=True)
class _Calls:
    """The keys of an `OffloadableDataset`, as its `key` gives them."""

    function: Callable[[int], str]

    def __getitem__(self, row: int) -> str:
        """The key of a row.

        Raises:
            ConfigError: it is no path relative to the root.
        """
        key = self.function(row)
        if type(key) is not str:
            raise ConfigError(
                f"key({row}) must be text, got {key!r} of type {type(key).__name__}; return str(...) of it"
            )
        if key.startswith("/"):
            raise ConfigError(
                f"key({row}) must be a path relative to root, got the absolute {key!r}; leave out the root"
            )
        if ".." in key.split("/"):
            raise ConfigError(
                f"key({row}) must stay below root, got {key!r}; make root the folder that holds all files"
            )
        return key

    def fingerprint(self) -> bytes:
        """The same for all: what the user's code will say of each row is not known beforehand."""
        return b"calls"
