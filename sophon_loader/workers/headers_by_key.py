"""Headers of files by their keys, in memory that all processes of a loader share."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

from sophon_loader.host.shared import SharedArray
from sophon_loader.kinds.image.header import PACKED_NBYTES

_ROW = np.dtype([("key", np.uint64), ("check", np.uint64), ("nbytes", np.int64), ("packed", np.uint8, 16)])
_PROBES = 16
"""Rows that a key may lie in."""
MAX_ROWS = 1 << 22
"""160 MB, of which only rows in use take memory. Headers of further files are asked for at every look."""


class HeadersByKey:
    """The headers of files whose number is not known beforehand; a hash table without deletion and without locks.

    Two processes that write one row at the same time may leave it inconsistent; its check shows that, and the header
    counts as unknown.

    Args:
        files: expected number; room is made for four times as many.

    Example:
        >>> headers = HeadersByKey(files=1000)
        >>> headers.learn("cat/1.jpg", 109648, pack(header))
        >>> headers.of("cat/1.jpg")
        (109648, b'...')
    """

    def __init__(self, files: int) -> None:
        rows = 1 << max(10, (4 * files - 1).bit_length())
        self._rows = SharedArray.zeros((min(rows, MAX_ROWS), _ROW.itemsize // 8), np.int64)

    @property
    def _table(self) -> NDArray[np.void]:
        return self._rows.array.view(_ROW)[:, 0]

    def of(self, key: str) -> tuple[int, bytes] | None:
        """Return the size of a file in bytes and its packed header, b"" for none; None if it is not known."""
        table, number = self._table, _hash_of(key)
        for place in _places(number, len(table)):
            row = table[place]
            if not row["key"]:
                return None
            if row["key"] == number:
                nbytes, packed = int(row["nbytes"]), row["packed"].tobytes()
                if row["check"] != _check(key, nbytes, packed):
                    return None
                return nbytes, packed[1 : 1 + packed[0]]
        return None

    def learn(self, key: str, nbytes: int, packed: bytes) -> None:
        """Keep a file's header; without room for it, nothing is kept.

        Args:
            key: of the file.
            nbytes: its size.
            packed: its header; b"" for none.
        """
        assert len(packed) in (0, PACKED_NBYTES)
        table, number = self._table, _hash_of(key)
        whole = bytes([len(packed)]) + packed.ljust(15, b"\0")
        for place in _places(number, len(table)):
            if table["key"][place] in (0, number):
                table["check"][place] = 0
                table["packed"][place] = np.frombuffer(whole, np.uint8)
                table["nbytes"][place] = nbytes
                table["check"][place] = _check(key, nbytes, whole)
                table["key"][place] = number
                return

    def forget(self, key: str) -> None:
        """Forget a header: the file has become another one."""
        table, number = self._table, _hash_of(key)
        for place in _places(number, len(table)):
            if table["key"][place] == number:
                table["check"][place] = 0


def _hash_of(key: str) -> int:
    return int(xxhash.xxh3_64_intdigest(key.encode(errors="surrogateescape"))) or 1


def _check(key: str, nbytes: int, packed: bytes) -> int:
    return int(xxhash.xxh3_64_intdigest(b"%d %b" % (nbytes, packed), seed=_hash_of(key) >> 1)) or 1


def _places(number: int, rows: int) -> list[int]:
    return [(number + step) % rows for step in range(_PROBES)]
