"""The labels of a source, by row: numbers in memory that all workers share, anything else as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sophon_loader.host.shared import SharedArray


@dataclass(frozen=True)
class IntTargets:
    """Labels that are all int, 8 bytes each."""

    values: SharedArray

    def __call__(self, row: int) -> int:
        return int(self.values.array[row])


@dataclass(frozen=True)
class ObjectTargets:
    """Any labels; a tensor or an array of several dimensions gives its rows."""

    values: Any

    def __call__(self, row: int) -> Any:
        return self.values[row]


def targets_of(values: Iterable[Any]) -> Callable[[int], Any]:
    """The labels as a function of the row: of integers in an array an int, else what `values` holds.

    Args:
        values: one label per row, in order; a column of a data frame by its order and not by its index.
    """
    if isinstance(values, (np.ndarray, torch.Tensor)):
        if values.ndim != 1 or not _are_ints(values):
            return ObjectTargets(values)
        values = values.tolist()
    labels = list(values)
    if set(map(type, labels)) <= {int}:
        try:
            return IntTargets(SharedArray(np.fromiter(labels, np.int64, len(labels))))
        except OverflowError:
            pass
    return ObjectTargets(labels)


def _are_ints(values: np.ndarray[Any, Any] | torch.Tensor) -> bool:
    return np.asarray(values[:0]).dtype.kind in "iu"
