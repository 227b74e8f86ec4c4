"""How often an index was met: against a plain counter, and the memory that it takes."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.run.ticket_sampler import Occurrences


@given(st.integers(1, 40), st.lists(st.integers(-40, 39), max_size=300))
def test_counts(samples: int, indices: list[int]) -> None:
    met, expected = Occurrences(samples), Counter[int]()
    for index in indices:
        if -samples <= index < samples:
            assert met.count(index) == expected[index % samples]
            expected[index % samples] += 1
        else:
            assert met.count(index) == 0


def nbytes(met: Occurrences) -> int:
    return sys.getsizeof(met._met) + sys.getsizeof(met._again)


def test_an_ordinary_epoch_takes_a_bit_per_sample() -> None:
    met = Occurrences(200_000)
    for index in range(200_000):
        met.count(index)
    assert nbytes(met) < 200_000 / 8 + 1000


def test_memory_grows_with_repetitions_and_not_without_end() -> None:
    met = Occurrences(50_000)
    for index in range(1000):
        assert met.count(index) == 0 and met.count(index) == 1
    assert isinstance(met._again, dict)
    for times in range(6):
        for index in range(1000, 50_000):
            assert met.count(index) == times
    assert isinstance(met._again, array) and nbytes(met) < 4.5 * 50_000
    assert met.count(3) == 2


def test_a_count_goes_on_where_it_was_interrupted() -> None:
    class TooLate(Exception):
        pass

    def interrupted() -> Iterator[int]:
        yield from (3, 4)
        raise TooLate

    met, counted = Occurrences(9), list[int]()
    met.count(4)
    with pytest.raises(TooLate):
        met.count_all(interrupted(), counted)
    assert counted == [0, 1]
    assert met.count_all([3, 4, 3, 5], counted) == [0, 1, 1, 0]
