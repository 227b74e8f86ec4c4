"""Arrays in memory that all processes of a loader share, under fork and spawn alike."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_AT_ONCE = 1024


class SharedArray:
    """A numeric array in shared memory; `array` is the view to read and write.

    Args:
        values: copied.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        self._tensor.share_memory_()  # type: ignore[no-untyped-call]  # which copies
        self.array: NDArray[Any] = self._tensor.numpy()

    def __len__(self) -> int:
        return len(self.array)

    def __getstate__(self) -> torch.Tensor:
        return self._tensor  # torch's pickling for processes sends a handle of the memory

    def __setstate__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.array = tensor.numpy()


class SharedStrings:
    """Many strings in two arrays, instead of a list whose objects every worker would come to copy.

    Args:
        strings: none with a NUL character.
        below: what each of them begins with, and is kept without.

    Raises:
        ValueError: one has a NUL character, or does not begin with `below`.
    """

    def __init__(self, strings: Iterable[str], below: str = "") -> None:
        # Some at a time, so that what is made of them stays in the cache: twice as fast as one long text.
        rest, count, parts = iter(strings), 0, []
        start = b"\0" + below.encode("utf-8", "surrogateescape")
        while some := list(islice(rest, _AT_ONCE)):
            text = "\0".join(("", *some)).encode("utf-8", "surrogateescape")
            kept = text.replace(start, b"\0")
            if len(text) - len(kept) != (len(start) - 1) * len(some):
                raise ValueError(f"strings must begin with {below!r}")
            parts.append(kept)
            count += len(some)
        blob = np.frombuffer(bytearray().join((*parts, b"\0")), np.uint8)
        ends = np.flatnonzero(blob == 0)
        if len(ends) != count + 1:
            raise ValueError("strings must have no NUL character")
        self._ends = SharedArray(ends)
        self._blob = SharedArray(blob)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def fingerprint(self) -> bytes:
        """A hash of all strings in their order."""
        digest = sha256(self._ends.array.tobytes())
        digest.update(self._blob.array.tobytes())
        return digest.digest()

    def __getitem__(self, row: int) -> str:
        ends = self._ends.array
        return self._blob.array[ends[row] + 1 : ends[row + 1]].tobytes().decode("utf-8", "surrogateescape")
