"""Takes datasets that can be offloaded apart, into arrays that all workers share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import ConcatDataset, Subset

from sophon_loader.datasets.indices import integers
from sophon_loader.datasets.protocol import NotOffloadable, Offloadable, OffloadableDataset, Source
from sophon_loader.datasets.recognised import own_parts, replaced_under, rule_of
from sophon_loader.datasets.sample_keys import Calls
from sophon_loader.datasets.without_gain import why_no_gain
from sophon_loader.errors import must_leave
from sophon_loader.host.shared import SharedArray


def offloadable(dataset: Any) -> Offloadable:
    """Take a dataset apart.

    Args:
        dataset: one whose class is known (`recognised.py`), an `OffloadableDataset`, or a Subset or ConcatDataset of
            these.

    Raises:
        NotOffloadable: it is something else; the text says what is missing.
    """
    owned, of, rows = _parts(dataset)
    sources, owners = zip(*owned, strict=True) if owned else ((), ())
    shared_of, shared_rows = SharedArray.together(of, rows)
    return Offloadable(sources, shared_of, shared_rows, owners, type(dataset), dataset)


_Parts = tuple[list[tuple[Source, Any]], NDArray[np.int16], NDArray[np.int32]]


def _parts(dataset: Any) -> _Parts:
    if type(dataset) is Subset:
        sources, of, rows = _parts(dataset.dataset)
        try:
            chosen = integers(dataset.indices)
            of, rows = of[chosen], rows[chosen]
        except (TypeError, ValueError, RuntimeError, LookupError, OverflowError) as error:
            raise NotOffloadable(
                f"a Subset must have integers as indices, each of a sample of its dataset, got others: {error}"
            ) from error
        if type(dataset.dataset) not in (Subset, ConcatDataset):
            _see_negative(chosen[chosen < 0].tolist(), sources[0][0].keys, len(sources[0][1]))
        return sources, of, rows
    if type(dataset) is ConcatDataset:
        return _joined([_parts(part) for part in dataset.datasets])
    source, length = _source(dataset)
    return [(source, dataset)], np.zeros(length, np.int16), np.arange(length, dtype=np.int32)


def _see_negative(indices: list[int], keys: Any, length: int) -> None:
    """Check that negative indices count from the end in the dataset itself; only its own code knows that."""
    for index in indices if isinstance(keys, Calls) else ():
        try:
            why = keys.unlike(index, length)
        except Exception as error:  # the boundary to the user's dataset
            if must_leave(error):
                raise
            why = f"key({index}) raises {type(error).__name__}: {error}"
        if why:
            raise NotOffloadable(f"a Subset has the negative index {index}, where {why}")


def _joined(parts: list[_Parts]) -> _Parts:
    sources: list[tuple[Source, Any]] = []
    of, rows = [], []
    for more, its_of, its_rows in parts:
        of.append(its_of + len(sources))
        rows.append(its_rows)
        sources += more
    if len(sources) > np.iinfo(np.int16).max:
        raise NotOffloadable(f"a ConcatDataset has {len(sources)} folders, and {np.iinfo(np.int16).max} is the limit")
    return sources, np.concatenate(of).astype(np.int16), np.concatenate(rows)


def _source(dataset: Any) -> tuple[Source, int]:
    if what := replaced_under(dataset):
        raise NotOffloadable(
            f"{what}, and neither an agent nor this loader's own road from a file to a sample calls that; put back "
            "what the library ships, and move what yours does into the transform"
        )
    rule = rule_of(dataset)
    if rule is not None:
        return rule.source(dataset), len(dataset)
    if isinstance(dataset, OffloadableDataset):
        return Source(str(dataset.root), Calls(dataset.key), dataset.target, promised=True), len(dataset)
    raise NotOffloadable(_why(dataset))


_ONLY = "of use only if a sample is one picture, opened by Pillow as RGB, and its label"
"""Condition for adding these members; part of the note on missing ones."""


_TABLE = (
    "a Hugging Face table, whose own code makes the samples; if its pictures lie in files, list them: files = "
    'table.cast_column("image", datasets.Image(decode=False))["image"], and then sophon_loader.FileDataset(ROOT, '
    '[row["path"] for row in files], table["label"], transform); if they lie in parquet files, serve these: '
    "sophon-agent serve --export NAME=parquet:///PATH.parquet, and use sophon_loader.RemoteFiles"
)


def _is_table(value: Any) -> bool:
    """Return whether a value is a table of Hugging Face's `datasets`, which need not be installed."""
    return any((cls.__module__, cls.__name__) == ("datasets.arrow_dataset", "Dataset") for cls in type(value).__mro__)


def _why(dataset: Any) -> str:
    """Return the reason why a dataset without a rule and without the protocol is not offloaded, and the remedy."""
    name = type(dataset).__name__
    if no_gain := why_no_gain(dataset):
        return f"{name} runs as in DataLoader: {no_gain}"
    if _is_table(dataset):
        return f"{name} is {_TABLE}"
    if any(map(_is_table, getattr(dataset, "__dict__", {}).values())):
        return f"{name} holds {_TABLE}"
    members = {"root": "root", "transform": "transform", "key": "key(index)", "target": "target(index)"}
    lacking = [text for member, text in members.items() if not hasattr(dataset, member)]
    what = " and ".join([", ".join(lacking[:-1]), lacking[-1]] if lacking[1:] else lacking) or "a length"
    remedy = f"it lacks {what} (see sophon_loader.OffloadableDataset; "
    remedy += f"{_ONLY}); for a list of files, use sophon_loader.FileDataset"
    if own := own_parts(dataset):
        # A recipe that many have copied gives the path as well.
        more = "; put what it gives besides image and label into the label: targets=[(label, path), ...]"
        return f"{name} has a {own[0]} of its own; {remedy}{more if own[0] == '__getitem__' else ''}"
    return f"{name} is not an ImageFolder, nor another class that is known here; {remedy}"
