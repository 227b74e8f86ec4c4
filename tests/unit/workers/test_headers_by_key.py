"""A table of headers in shared memory: what was learnt comes back, what is damaged or too much is unknown."""

from __future__ import annotations

import numpy as np

from sophon_loader.kinds.image.header import PACKED_NBYTES
from sophon_loader.workers.headers_by_key import HeadersByKey


def packed(number: int) -> bytes:
    return number.to_bytes(PACKED_NBYTES, "big")


def test_what_was_learnt_comes_back() -> None:
    headers = HeadersByKey(500)
    keys = [f"a/{number}.jpg" for number in range(500)]
    assert headers.of(keys[0]) is None
    for number, key in enumerate(keys):
        headers.learn(key, number, packed(number) if number % 3 else b"")
    assert [headers.of(key) for key in keys] == [(n, packed(n) if n % 3 else b"") for n in range(500)]
    headers.learn(keys[7], 1, packed(1))
    headers.forget(keys[8])
    assert headers.of(keys[7]) == (1, packed(1)) and headers.of(keys[8]) is None
    headers.learn(keys[8], 2, packed(2))
    assert headers.of(keys[8]) == (2, packed(2))


def test_a_row_that_two_have_written_counts_as_unknown() -> None:
    headers = HeadersByKey(1)
    headers.learn("a.jpg", 5, packed(5))
    (row,) = np.flatnonzero(headers._table["key"])
    headers._table["nbytes"][row] = 6
    assert headers.of("a.jpg") is None


def test_files_beyond_its_room_stay_unknown() -> None:
    headers = HeadersByKey(1)
    for number in range(5000):
        headers.learn(str(number), number, packed(number))
    found = [headers.of(str(number)) for number in range(5000)]
    assert all(one in (None, (n, packed(n))) for n, one in enumerate(found))
    assert 900 < sum(one is not None for one in found) <= 1024
