"""What taking a dataset apart reads of it, to see later whether that has changed."""

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
"""Samples that are looked at together: what that takes for a moment does not grow with the dataset."""


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

    Tells a change in place as well: the samples of folders, and the indices of a Subset, are hashed one by one (1.28
    million take a fifth of a second). Labels that are no int are kept themselves.
    """
    return [part for node in _nodes(dataset) for part in _read_of(node)]


def watch_of_parts(dataset: Any) -> Watch:
    """Tells later whether what holds the samples of a dataset was replaced, or lists in it have another length: a look
    that takes a moment, and does not tell all that `look` does.
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
    """Whether two looks at a dataset found the same.

    Args:
        one, other: what `look` gave.
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
    """A part of a dataset as it is at the moment: a hash or a copy of a list, anything else itself."""
    if not isinstance(part, list):
        return part
    return _samples(part) if part and type(part[0]) is tuple else _kept(part)


def _samples(samples: Any) -> Any:
    """A hash of a folder's samples; a copy where labels are no ints, of which a hash may not tell a change."""
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
    """A hash of integers; a copy of what is none."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # rows of unequal length, a tensor of a device
        return _kept(values)
    if array.dtype.kind not in "iu":
        return _kept(values)
    return [*array.shape, blake2b(np.ascontiguousarray(array, np.int64).data, digest_size=16).digest()]


def _kept(values: Any) -> Any:
    """A copy of a sequence, as cheap to make and to compare as can be."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
