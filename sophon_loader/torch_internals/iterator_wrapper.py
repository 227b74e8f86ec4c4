"""What stands around an iterator of DataLoader's, and passes on all that it does not have itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Around(Iterator[Any]):
    """The base of these.

    Args:
        batches: the iterator; what else it has can be had here, too.
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_batches"], name)

    def __len__(self) -> int:
        return len(self._batches)
