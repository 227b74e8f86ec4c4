"""One order for all ranks: each index once, in equal steps, also when the number of ranks changes on the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler, SequentialSampler

from sophon_loader.errors import ConfigError
from sophon_loader.order import sharding
from sophon_loader.order.sharding import ShardSampler, shard_sampler
from sophon_loader.pipeline.randomness import Seed


def dealt(
    length: int, ranks: int, size: int | None, start: int = 0, *, drop_last: bool = False, epoch: int = 3
) -> list[list[tuple[list[int], int]]]:
    """By rank, its batches."""
    found = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharding, "rank_of_all", lambda rank=rank: (rank, ranks))
            sampler = ShardSampler(range(length), True)
            sampler.run_seed, sampler.epoch = Seed(7), epoch
            found.append(list(sampler.batches(start, size, drop_last=drop_last)))
    return found


LENGTHS, RANKS, SIZES = st.integers(0, 60), st.integers(1, 5), st.integers(2, 7)


@given(LENGTHS, RANKS, SIZES, st.booleans())
def test_each_once_in_equal_steps(length: int, ranks: int, size: int, drop_last: bool) -> None:
    found = dealt(length, ranks, size, drop_last=drop_last)
    steps = {len(batches) for batches in found}
    assert len(steps) == 1
    (step,) = steps
    assert step == (length // (ranks * size) if drop_last else -(-length // (ranks * size)))
    assert all(1 <= len(batch) <= size for batches in found for batch, _ in batches)
    assert all(len(batch) == size for batches in found for batch, _ in batches[:-2])
    given_out = sorted(index for batches in found for batch, _ in batches for index in batch)
    if drop_last:
        assert len(set(given_out)) == len(given_out) == step * ranks * size
    elif length >= ranks:
        assert given_out == list(range(length))
    else:
        assert set(given_out) == set(range(length))


@given(LENGTHS, RANKS, RANKS, SIZES, SIZES, st.data())
def test_another_number_of_ranks(length: int, ranks: int, later: int, size: int, other: int, data: Any) -> None:
    """The steps before any cut, and what other ranks then have, are each index once."""
    found = dealt(length, ranks, size)
    cut = data.draw(st.integers(0, len(found[0])))
    had = {batches[cut - 1][1] if cut else 0 for batches in found}
    assert len(had) == 1
    (start,) = had
    before = [index for batches in found for batch, _ in batches[:cut] for index in batch]
    after = [index for batches in dealt(length, later, other, start) for batch, _ in batches for index in batch]
    if length >= ranks and (length - start >= later or length == start):
        assert sorted(before + after) == list(range(length))
    assert set(before + after) == set(range(length))


@pytest.mark.parametrize("size", [None, 1])
def test_one_at_a_time_repeats_where_a_rank_would_have_nothing(size: int | None) -> None:
    found = dealt(7, 3, size)
    assert [len(batches) for batches in found] == [3, 3, 3]
    assert [had for _, had in found[0]] == [3, 6, 7]
    flat = [index for batches in found for batch, _ in batches for index in batch]
    assert set(flat) == set(range(7)) and len(flat) == 9


def test_the_order_is_of_seed_and_epoch() -> None:
    orders = [[i for batch, _ in dealt(40, 1, 4, epoch=epoch)[0] for i in batch] for epoch in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[2]) == list(range(40))
    assert [len(ShardSampler(range(40), shuffle)) for shuffle in (True, False)] == [40, 40]
    assert list(ShardSampler(range(40), False)) == list(range(40))


def test_frameworks_leave_it_where_it_is() -> None:
    """Lightning and Ray Train ask for this class, before they deal the samples out themselves."""
    assert isinstance(ShardSampler(range(40), True), DistributedSampler)


def test_nobody_else_reads_an_order_that_its_loader_has_not_drawn() -> None:
    """What accelerate makes to leave batches out would read another order, at every rank."""
    with pytest.raises(ConfigError, match="sampler of shard=True must be read by its own loader first"):
        list(ShardSampler(range(40), True))


def test_a_sampler_besides() -> None:
    with pytest.raises(ConfigError, match="shard must be False with a sampler, got True"):
        shard_sampler(range(3), SequentialSampler(range(3)), None, None)
