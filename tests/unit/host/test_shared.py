"""Arrays and strings in shared memory: what goes in comes out, in every process."""

from __future__ import annotations

import io
import os
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sophon_loader.host.shared import SharedArray, SharedStrings
from tests.support.drawn import examples

FILE_NAMES = (st.binary(max_size=20).map(os.fsdecode) | st.text(max_size=20)).map(lambda name: name.replace("\0", "_"))
"""Any bytes but NUL are a file name; those that are not UTF-8 become low surrogates."""


@examples(50)
@given(st.lists(FILE_NAMES))
def test_strings_come_back(strings: list[str]) -> None:
    shared = SharedStrings(strings)
    assert len(shared) == len(strings)
    assert [shared[i] for i in range(len(shared))] == strings


@pytest.mark.parametrize("strings", [[], [""], ["", "", ""], ["cat/\udcff\udc80.jpg", "猫/é.jpg", "a" * 5000]])
def test_corner_cases(strings: list[str]) -> None:
    shared = SharedStrings(strings)
    assert [shared[i] for i in range(len(shared))] == strings


def test_what_all_begin_with_is_left_out() -> None:
    shared = SharedStrings(["/d/a/1.jpg", "/d//d/2.jpg", "/d/"], "/d/")
    assert [shared[i] for i in range(len(shared))] == ["a/1.jpg", "/d/2.jpg", ""]


@pytest.mark.parametrize("strings", [["/d/a", "/e/b"], ["a/d/b"], ["/d/a\0/d/b"], ["/d/a\0b"]])
def test_others_are_refused(strings: list[str]) -> None:
    with pytest.raises(ValueError, match="strings must"):
        SharedStrings(strings, "/d/")


def test_an_index_past_the_end_is_an_error() -> None:
    with pytest.raises(IndexError):
        SharedStrings(["a"])[1]


def test_an_array_is_a_copy() -> None:
    values = np.arange(5)
    shared = SharedArray(values)
    values[0] = 9
    assert shared.array.tolist() == [0, 1, 2, 3, 4]
    assert shared.array.dtype == values.dtype


def _write(shared: SharedArray, strings: SharedStrings) -> None:
    shared.array[1] = len(strings[1])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_to_the_same_memory(method: str) -> None:
    shared, strings = SharedArray(np.zeros(3)), SharedStrings(["a", "bcd\udcff"])
    context: Any = torch.multiprocessing.get_context(method)
    process = context.Process(target=_write, args=(shared, strings))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert shared.array.tolist() == [0, 4, 0]


def test_what_travels_is_a_handle() -> None:
    shared = SharedArray(np.zeros(1_000_000))
    file = io.BytesIO()
    ForkingPickler(file).dump(shared)
    assert len(file.getvalue()) < 2000


def test_arrays_in_one_piece_of_memory() -> None:
    values: list[NDArray[Any]] = [
        np.arange(5, dtype=np.float16),
        np.zeros((2, 3), np.uint16),
        np.full(1, 7, np.int64),
        np.zeros(0, np.uint8),
    ]
    shared = SharedArray.together(*values)
    for one, before in zip(shared, values, strict=True):
        assert one.array.dtype == before.dtype
        assert np.array_equal(one.array, before)
    assert len({one._tensor.untyped_storage().data_ptr() for one in shared}) == 1
    shared[1].array[...] = 9
    assert shared[2].array.tolist() == [7]
    packed = bytes(ForkingPickler.dumps(shared))
    again = ForkingPickler.loads(packed)
    again[0].array[0] = 4
    assert shared[0].array[0] == 4


def _shared_kib() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Shmem:"))


def _write_one(_: int, shared: SharedArray) -> None:
    shared.array[1, 2] += 3


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_zeros_take_memory_where_they_are_written_to(how: str) -> None:
    before = _shared_kib()
    shared = SharedArray.zeros((4, 1 << 28), np.uint8)
    assert _shared_kib() - before < 1 << 19, "a GiB of which nothing is used"
    torch.multiprocessing.start_processes(_write_one, (shared,), start_method=how)
    assert shared.array[1, :4].tolist() == [0, 0, 3, 0] and shared.array.dtype == np.uint8
    assert SharedArray.zeros((2,), np.int64).array.tolist() == [0, 0]
