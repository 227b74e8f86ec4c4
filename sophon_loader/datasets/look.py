"""Snapshots of everything that taking a dataset apart reads, to notice later changes."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Subset

from sophon_loader.datasets.protocol import OffloadableDataset
from sophon_loader.datasets.recognised import replaced_under, rule_of
from sophon_loader.pipeline.watch import Watch

_BLOCK = 1 << 14
"""Number of samples hashed at a time. The memory for it does not grow with the dataset."""


def _nodes(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and the datasets inside its Subsets and ConcatDatasets, down to those that hold samples."""
    yield dataset
    inner = [dataset.dataset] if type(dataset) is Subset else dataset.datasets if type(dataset) is ConcatDataset else []
    for one in inner:
        yield from _nodes(one)


def owners(dataset: Any) -> list[Any]:
    """Return the datasets that hold the transforms."""
    return [node for node in _nodes(dataset) if type(node) not in (Subset, ConcatDataset)]


def look(dataset: Any) -> list[Any]:
    """Return a snapshot of everything that `offloadable` reads of a dataset; compare two with `same_look`.

    It shows changes in place, too: samples of folders and indices of a Subset are hashed one by one (1.28 million take
    a fifth of a second). Labels that are not ints are copied.
    """
    return [part for node in _nodes(dataset) for part in _read_of(node)]


def watch_of_parts(dataset: Any) -> Watch:
    """Return a watch that notices if an object that holds a dataset's samples is replaced, or a list's length changes.

    It is quick, and notices less than `look`.
    """
    return Watch([], [], [(node, _present(node, _holds(node))) for node in _nodes(dataset)])


def _holds(node: Any) -> tuple[str, ...]:
    if type(node) is Subset:
        return "dataset", "indices"
    if type(node) is ConcatDataset:
        return ("datasets",)
    rule = rule_of(node)
    return ("root",) if rule is None else rule.holds_samples


def _present(node: Any, names: tuple[str, ...]) -> list[str]:
    found = []
    for name in names:
        try:
            attrgetter(name)(node)
        except AttributeError:  # another release, or a class without a loader
            continue
        found.append(name)
    return found


def _read_of(node: Any) -> list[Any]:
    if type(node) is Subset:
        return [node.dataset, _numbers(node.indices)]
    if type(node) is ConcatDataset:
        return [_kept(node.datasets)]
    rule, replaced = rule_of(node), str(replaced_under(node))
    if rule is not None:
        return [replaced, *(_seen(part) for part in rule.look(node))]
    return [replaced, node.root, len(node)] if isinstance(node, OffloadableDataset) else []


def same_look(one: list[Any], other: list[Any]) -> bool:
    """Return True if two snapshots are equal.

    Args:
        one, other: results of `look`.
    """
    return len(one) == len(other) and all(map(_same_part, one, other))


def _same_part(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and isinstance(one, (list, str, int, bytes)) and bool(one == other)
    except ValueError:  # labels whose comparison is no truth value; the same objects were not compared
        return False


def _seen(part: Any) -> Any:
    """Return a part of a dataset as it is now: a hash or a copy of a list, anything else itself."""
    if not isinstance(part, list):
        return part
    return _samples(part) if part and type(part[0]) is tuple else _kept(part)


def _samples(samples: Any) -> Any:
    """Return a hash of a folder's samples, or a copy if labels are not ints: a hash may miss changes of these."""
    hashed = blake2b(digest_size=16)
    every = iter(samples)
    try:
        while block := tuple(islice(every, _BLOCK)):
            labels = list(map(itemgetter(1), block))
            if {*map(type, labels)} != {int}:
                return _kept(samples)
            hashed.update(np.array(labels, np.int64).data)  # by themselves: Python's hash takes -1 for -2
            hashed.update(hash(block).to_bytes(8, "little", signed=True))
    except (TypeError, OverflowError):  # without a hash, or beyond 64 bits
        return _kept(samples)
    return hashed.digest()


def _numbers(values: Any) -> Any:
    """Return a hash of integers, or a copy of other values."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # rows of unequal length, a tensor of a device
        return _kept(values)
    if array.dtype.kind not in "iu":
        return _kept(values)
    return [*array.shape, blake2b(np.ascontiguousarray(array, np.int64).data, digest_size=16).digest()]


def _kept(values: Any) -> Any:
    """Return a copy of a sequence, in the form that is cheapest to make and compare."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
