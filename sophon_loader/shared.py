"""Arrays in memory that all processes of a loader share, under fork and spawn alike."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

_AT_ONCE = 1024


def shared_tensor(length: int, dtype: torch.dtype) -> torch.Tensor:
    """`length` values in new shared memory, not set to anything; `share_memory_` would copy what nobody needs."""
    memory = torch.UntypedStorage._new_shared(length * dtype.itemsize)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype).set_(memory)


class SharedArray:
    """A numeric array in shared memory; `array` is the view to read and write.

    Args:
        values: copied.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._tensor = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        self._tensor.share_memory_()  # type: ignore[no-untyped-call]  # which copies
        self.array: NDArray[Any] = self._tensor.numpy()

    @classmethod
    def joined(cls, parts: Sequence[NDArray[Any]], as_type: type[np.integer[Any]]) -> SharedArray:
        """One-dimensional arrays one behind the other, copied once."""
        shared = cls.__new__(cls)
        shared.__setstate__(shared_tensor(sum(map(len, parts)), torch.from_numpy(np.empty(0, as_type)).dtype))
        np.concatenate(parts, out=shared.array, casting="same_kind")
        return shared

    def __len__(self) -> int:
        return len(self.array)

    def __getstate__(self) -> torch.Tensor:
        return self._tensor  # torch's pickling for processes sends a handle of the memory

    def __setstate__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self.array = tensor.numpy()


class SharedNotes:
    """Some places for bytes that one process writes while others read: what is half written is not read.

    Args:
        count: of the places.
        nbytes: of each, with 8 of its own.
    """

    _HEAD = struct.Struct("<II")  # length and CRC-32 of what follows

    def __init__(self, count: int, nbytes: int) -> None:
        self._places = SharedArray(np.zeros((count, nbytes), np.uint8))

    def __len__(self) -> int:
        return len(self._places)

    def write(self, place: int, data: bytes) -> bool:
        """Put `data` there, if there is room for it; whether there was."""
        whole = self._HEAD.pack(len(data), crc32(data)) + data
        fits: bool = len(whole) <= self._places.array.shape[1]
        if fits:
            self._places.array[place, : len(whole)] = np.frombuffer(whole, np.uint8)
        return fits

    def read(self, place: int) -> bytes | None:
        """What was written there last, b"" for nothing; None while it is being written."""
        row = self._places.array[place]
        size, checksum = self._HEAD.unpack(row[: self._HEAD.size].tobytes())
        data: bytes = row[self._HEAD.size :][:size].tobytes()
        return data if crc32(data) == checksum else None


def _narrow(largest: int) -> type[np.int32] | type[np.int64]:
    """A type for numbers up to `largest`."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


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
        rest, nbytes, parts, starts = iter(strings), 0, [], []
        first = b"\0" + below.encode("utf-8", "surrogateescape")
        while some := list(islice(rest, _AT_ONCE)):
            text = "\0".join(("", *some)).encode("utf-8", "surrogateescape")
            kept = np.frombuffer(text.replace(first, b"\0"), np.uint8)
            if len(text) - len(kept) != (len(first) - 1) * len(some):
                raise ValueError(f"strings must begin with {below!r}")
            found = np.flatnonzero(kept == 0)
            if len(found) != len(some):
                raise ValueError("strings must have no NUL character")
            parts.append(kept)
            # Narrow at once: memory that is new to the process is most of what all this costs.
            starts.append((found + nbytes).astype(_narrow(nbytes + len(kept))))
            nbytes += len(kept)
        self._starts = SharedArray.joined([*starts, np.array([nbytes])], _narrow(nbytes))
        self._blob = SharedArray.joined([*parts, np.zeros(1, np.uint8)], np.uint8)  # never empty

    def __len__(self) -> int:
        return len(self._starts) - 1

    def fingerprint(self) -> bytes:
        """A hash of all strings in their order."""
        digest = sha256(self._starts.array.tobytes())
        digest.update(self._blob.array.tobytes())
        return digest.digest()

    def __getitem__(self, row: int) -> str:
        starts = self._starts.array
        return self._blob.array[starts[row] + 1 : starts[row + 1]].tobytes().decode("utf-8", "surrogateescape")
