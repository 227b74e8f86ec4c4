"""`_table.apply` against numpy, and its refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

_table = pytest.importorskip("sophon_loader.native._table", reason="the C extension is not built", exc_type=ImportError)
NOT_CONTIGUOUS = (BufferError, TypeError)
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def applied(pixels: np.ndarray, table: np.ndarray, planes: bool) -> np.ndarray:
    area, channels = pixels.shape
    out = np.zeros((channels, area) if planes else (area, channels), table.dtype)
    _table.apply(pixels, table, out, table.itemsize, planes)
    return out if planes else out.T


@given(
    seed=st.integers(0, 2**32 - 1),
    area=st.integers(0, 300),
    channels=st.integers(1, 5),
    nbytes=st.sampled_from(list(UNSIGNED)),
    planes=st.booleans(),
)
def test_it_is_numpys_indexing(seed: int, area: int, channels: int, nbytes: int, planes: bool) -> None:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (area, channels), np.uint8)
    table = np.frombuffer(rng.bytes(channels * 256 * nbytes), UNSIGNED[nbytes]).reshape(channels, 256)
    expected = np.stack([table[c][pixels[:, c]] for c in range(channels)])
    assert np.array_equal(applied(pixels, table, planes), expected)


@pytest.mark.parametrize(
    ("pixels", "table", "out", "nbytes", "said"),
    [
        *((6, 256, 6, nbytes, "item_nbytes must be 1, 2, 4 or 8") for nbytes in (0, 3, 16, -1, -4)),
        *((6, size, 6, 1, "table must have 256 items") for size in (0, 255, 257)),
        (6, 256, 24, 4, "table must have 256 items"),
        (7, 3 * 256, 7, 1, "pixels must have a value for each channel"),
        *((6, 3 * 256 * 4, size, 4, "out must have an item for each value") for size in (0, 23, 25, 6, 28)),
        (6, 3 * 256, 0, 1, "out must have an item for each value"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(pixels: int, table: int, out: int, nbytes: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _table.apply(bytes(pixels), bytes(table), bytearray(out), nbytes, True)


def test_what_is_not_aligned_is_refused() -> None:
    for of_table, of_out in ((1, 0), (0, 2), (3, 3)):
        table, out = np.zeros(256 * 4 + 8, np.uint8), np.zeros(32, np.uint8)
        with pytest.raises(ValueError, match="aligned"):
            _table.apply(bytes(6), table[of_table:][: 256 * 4], out[of_out:][:24], 4, True)


def test_buffers_must_be_contiguous_and_out_writable() -> None:
    table, out = bytes(256), bytearray(4)
    with pytest.raises(NOT_CONTIGUOUS):
        _table.apply(memoryview(bytes(8))[::2], table, out, 1, True)
    with pytest.raises(NOT_CONTIGUOUS):
        _table.apply(bytes(4), table, memoryview(bytearray(8))[::2], 1, True)
    with pytest.raises(NOT_CONTIGUOUS):
        _table.apply(bytes(4), table, bytes(4), 1, True)
    with pytest.raises(TypeError):
        _table.apply([1], table, out, 1, True)


def test_threads_do_not_disturb_each_other() -> None:
    rng = np.random.default_rng(1)
    jobs = [(rng.integers(0, 256, (5000, 3), np.uint8), rng.random((3, 256)), bool(n % 2)) for n in range(20)]
    expected = [applied(*job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            for found, right in zip(pool.map(lambda job: applied(*job), jobs), expected, strict=True):
                assert np.array_equal(found, right)
