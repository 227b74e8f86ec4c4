"""Arrays in memory that all processes of a loader share, under fork and spawn alike."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

_STRINGS_AT_ONCE = 1024
"""Strings packed at a time. Their intermediate copies then stay in the CPU cache, which is twice as fast as packing all
at once."""
_ALIGNED_NBYTES = 64


def _dtype(values: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, values.dtype)).dtype


def shared_tensor(length: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate a tensor in new shared memory, with undefined values; `share_memory_` would copy needlessly.

    Args:
        length: number of values.
        dtype: of each.
    """
    memory = torch.UntypedStorage._new_shared(length * dtype.itemsize)  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=dtype, device="cpu").set_(memory)


class SharedArray:
    """A numeric array in shared memory. A process that receives this object maps the same memory, under fork and spawn.

    Args:
        values: any shape and numeric dtype; copied.

    Attributes:
        array: the view to read and write.

    Example:
        >>> counts = SharedArray(np.zeros(8, np.int64))
        >>> counts.array[3] += 1
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._fill(shared_tensor(values.size, _dtype(values)).reshape(values.shape), values)

    def _fill(self, tensor: torch.Tensor, values: NDArray[Any]) -> None:
        self._tensor = tensor
        # Copied by numpy: torch's `share_memory_` does so in threads, for which a forked process would wait for ever.
        self.array: NDArray[Any] = tensor.numpy()
        self.array[...] = values

    @classmethod
    def together(cls, *values: NDArray[Any]) -> list[SharedArray]:
        """Put several arrays into one piece of shared memory, so that each process needs one descriptor for all.

        Args:
            values: initial values of each array.
        """
        starts = np.cumsum([0, *(-(-one.nbytes // _ALIGNED_NBYTES) * _ALIGNED_NBYTES for one in values)])
        memory = shared_tensor(int(starts[-1]), torch.uint8).untyped_storage()
        found = []
        for one, start in zip(values, starts, strict=False):
            shared = cls.__new__(cls)
            place = torch.empty(0, dtype=_dtype(one), device="cpu")
            shared._fill(place.set_(memory, int(start) // one.itemsize, one.shape), one)  # type: ignore[call-overload]
            found.append(shared)
        return found

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: type[np.number[Any]]) -> SharedArray:
        """Make an array of zeros, which takes no memory until it is written or read.

        Args:
            shape: of the array.
            dtype: of its values.
        """
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        file = os.memfd_create("sophon_loader", os.MFD_CLOEXEC)
        try:
            os.ftruncate(file, nbytes)
            # Not `_new_shared`, which reserves all of it.
            memory = torch.UntypedStorage._new_shared_fd_cpu(file, nbytes)  # type: ignore[attr-defined]
        finally:
            os.close(file)
        shared = cls.__new__(cls)
        values = torch.empty(0, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device="cpu")
        shared.__setstate__(values.set_(memory).reshape(shape))
        return shared

    @classmethod
    def joined(cls, parts: Sequence[NDArray[Any]], as_type: type[np.integer[Any]]) -> SharedArray:
        """Concatenate one-dimensional arrays, with one copy.

        Args:
            parts: [n] each.
            as_type: an integer type that can hold their values.
        """
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
    """Places for bytes that one process writes while others read. A reader never gets a half-written value.

    Args:
        count: number of places.
        nbytes: size of each, including 8 bytes for the head.

    Example:
        >>> notes = SharedNotes(count=1, nbytes=1024)
        >>> notes.write(0, b"a plan"), notes.read(0)
        (True, b'a plan')
    """

    _HEAD = struct.Struct("<II")  # length and CRC-32 of what follows

    def __init__(self, count: int, nbytes: int) -> None:
        self._places = SharedArray(np.zeros((count, nbytes), np.uint8))

    def __len__(self) -> int:
        return len(self._places)

    def write(self, place: int, data: bytes) -> bool:
        """Write bytes to a place; False if they do not fit, and the place then keeps its value.

        Args:
            place: number of the place.
            data: bytes to store.
        """
        whole = self._HEAD.pack(len(data), crc32(data)) + data
        fits: bool = len(whole) <= self._places.array.shape[1]
        if fits:
            self._places.array[place, : len(whole)] = np.frombuffer(whole, np.uint8)
        return fits

    def read(self, place: int) -> bytes | None:
        """Return the bytes last written to a place, b"" before any; None while it is being written."""
        row = self._places.array[place]
        size, checksum = self._HEAD.unpack(row[: self._HEAD.size].tobytes())
        data: bytes = row[self._HEAD.size :][:size].tobytes()
        return data if crc32(data) == checksum else None


def _narrow(largest: int) -> type[np.int32] | type[np.int64]:
    """Return the smaller integer type that can hold numbers up to `largest`."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


class SharedStrings:
    """Many strings in two shared arrays. Of a list of str objects, every worker would gradually make its own copy.

    One array holds the strings as UTF-8, each with a NUL in front; the other holds the position of each NUL.

    Args:
        strings: none with a NUL character.
        below: common beginning, which is not stored.

    Raises:
        ValueError: one has a NUL character, or does not begin with `below`.

    Example:
        >>> keys = SharedStrings(["/data/a/1.jpg", "/data/b/2.jpg"], below="/data/")
        >>> keys[1]
        'b/2.jpg'
    """

    def __init__(self, strings: Iterable[str], below: str = "") -> None:
        rest = iter(strings)
        nbytes = 0
        parts: list[NDArray[np.uint8]] = []
        starts: list[NDArray[Any]] = []
        while some := list(islice(rest, _STRINGS_AT_ONCE)):
            kept = _packed(some, below)
            nuls = np.flatnonzero(kept == 0)
            if len(nuls) != len(some):
                raise ValueError("strings must have no NUL character")
            parts.append(kept)
            # Narrow at once: memory that is new to the process is most of what all this costs.
            starts.append((nuls + nbytes).astype(_narrow(nbytes + len(kept))))
            nbytes += len(kept)
        self._starts = SharedArray.joined([*starts, np.array([nbytes])], _narrow(nbytes))
        self._blob = SharedArray.joined([*parts, np.zeros(1, np.uint8)], np.uint8)  # never empty

    def __len__(self) -> int:
        return len(self._starts) - 1

    def fingerprint(self) -> bytes:
        """Return a hash of all strings in their order."""
        digest = sha256(self._starts.array.tobytes())
        digest.update(self._blob.array.tobytes())
        return digest.digest()

    def __getitem__(self, row: int) -> str:
        starts = self._starts.array
        return self._blob.array[starts[row] + 1 : starts[row + 1]].tobytes().decode("utf-8", "surrogateescape")


def _packed(strings: Sequence[str], below: str) -> NDArray[np.uint8]:
    """Encode the strings without `below` as UTF-8, each with a NUL in front.

    Cutting `below` after each NUL must shorten the text by the length of `below` per string. A string that does not
    begin with it shortens the text by less. A NUL inside another string could make up for that, so the caller counts
    the NULs.

    Raises:
        ValueError: one does not begin with `below`.
    """
    text = "\0".join(("", *strings)).encode("utf-8", "surrogateescape")
    prefix = below.encode("utf-8", "surrogateescape")
    kept = text.replace(b"\0" + prefix, b"\0")
    if len(text) - len(kept) != len(prefix) * len(strings):
        raise ValueError(f"strings must begin with {below!r}")
    return np.frombuffer(kept, np.uint8)
