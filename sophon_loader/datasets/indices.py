"""Indices that name the same samples in a dataset and in its parts after taking it apart."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index as as_int
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def as_integer(index: Any) -> int:
    """Return an index as an int that every dataset reads as the same number.

    Raises:
        TypeError: datasets read it differently. A boolean is 1 to a list and a mask to an array; a tensor of one number
            is a number to a list and a row to an array.
    """
    if isinstance(index, bool) or getattr(index, "dtype", None) is torch.bool:
        raise TypeError("a boolean is not an index")
    if getattr(index, "ndim", 0):
        raise TypeError("an array is not an index")
    return as_int(index)


def integers(indices: Any) -> NDArray[np.int64]:
    """Return the indices of a Subset as int64[N], read as `indices[0]`, `indices[1]`, ...

    Args:
        indices: any sequence, array, tensor or column of a table.

    Raises:
        TypeError, ValueError, RuntimeError, LookupError, OverflowError: one is not an integer of 64 bits, by the rules
            of `as_integer`.
    """
    if isinstance(indices, (np.ndarray, torch.Tensor)):
        array = np.asarray(indices)
        if array.ndim == 1 and array.dtype.kind in "iu" and array.dtype != np.uint64:
            return array.astype(np.int64)
    if isinstance(indices, Mapping):  # whose changes would not be noticed
        raise TypeError("a mapping is not a sequence")
    # Not by iteration: a column of a table goes by its labels.
    found = list(indices) if type(indices) in (list, tuple, range) else [indices[n] for n in range(len(indices))]
    if not {*map(type, found)} <= {int}:
        found = list(map(as_integer, found))
    return np.fromiter(found, np.int64, len(found))
