"""A wrapper of DataLoader's iterators, which passes on all attributes that it does not have itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Around(Iterator[Any]):
    """Base of these wrappers.

    Args:
        batches: the iterator; its attributes are those of the wrapper, too.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    def __len__(self) -> int:
        return len(self._batches)
