"""Which seed a rank has: rank 0's where each index is dealt out to one rank, one of its own under any other sampler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, TensorDataset

from sophon_loader.errors import ConfigError
from sophon_loader.order import loader_state
from sophon_loader.order.loader_state import LoaderState
from sophon_loader.order.sharding import ShardSampler
from sophon_loader.ranks import seeding
from sophon_loader.ranks.seeding import dealt_out_once

DATA = TensorDataset(torch.arange(9))
AtRank = Callable[..., LoaderState]


class Own(DistributedSampler[int]):
    pass


class Repeating(DistributedSampler[int]):
    gives_each_index_to_one_rank = False


class Dealt(list[int]):
    gives_each_index_to_one_rank = True


class Wrapper:
    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler


class Circle:
    @property
    def sampler(self) -> Any:
        return self


def of_two(kind: Any) -> Any:
    return kind(DATA, num_replicas=2, rank=0)


@pytest.mark.parametrize(
    "sampler",
    [
        of_two(DistributedSampler),
        of_two(Own),
        ShardSampler(range(9), True),
        Dealt([1, 2]),
        BatchSampler(of_two(Own), 2, False),
        Wrapper(Wrapper(BatchSampler(Dealt([1]), 2, False))),
    ],
)
def test_dealt_out_once(sampler: Any) -> None:
    assert dealt_out_once(None, sampler)


@pytest.mark.parametrize(
    "sampler",
    [SequentialSampler(DATA), BatchSampler(RandomSampler(DATA), 2, False), [1, 2], of_two(Repeating), Circle(), None],
)
def test_not_dealt_out_once(sampler: Any) -> None:
    assert not dealt_out_once(sampler, None)


@pytest.fixture
def at_rank(monkeypatch: pytest.MonkeyPatch) -> AtRank:
    """Where a loader of a rank stands, all in this process, with one store."""
    store = distributed.HashStore()
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", lambda: store)
    monkeypatch.setattr(seeding, "RANK_0_WAIT_S", 0.1)

    def made(rank: int, sampler: Any, seed: int | None = None, ranks: int = 2) -> LoaderState:
        monkeypatch.setattr(seeding, "rank_of_all", lambda: (rank, ranks))
        monkeypatch.setattr(loader_state, "rank_of_all", lambda: (rank, ranks))
        seeding._asked.clear()
        torch.manual_seed(rank)
        return LoaderState(DATA, (sampler, None), None, seed, drop_last=False)

    return made


def state_of(stands: LoaderState) -> Any:
    return stands.state(0, in_turn=True, offloadable=True, persisting=False)


@pytest.mark.parametrize("seed", [None, 7])
def test_seeds_of_ranks(at_rank: AtRank, seed: int | None) -> None:
    alone = at_rank(0, [1, 2], seed, ranks=1).drawn_seed()
    assert [at_rank(rank, Dealt([1]), seed).drawn_seed() for rank in (0, 1)] == [alone, alone]
    apart = [at_rank(rank, [1], seed).drawn_seed() for rank in (0, 1, 2)]
    assert apart[0] == alone and len(set(apart)) == 3
    stands = at_rank(1, [1], seed)
    before = torch.get_rng_state()
    stands.drawn_seed()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_rank_that_waits_in_vain_is_told_what_to_do(at_rank: AtRank) -> None:
    with pytest.raises(ConfigError, match=r"must draw a seed .*needs a sampler that is no DistributedSampler"):
        at_rank(1, Dealt([1])).drawn_seed()
    assert at_rank(1, [1]).drawn_seed()


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("begun", [True, False])
def test_the_seed_of_a_state_wins(at_rank: AtRank, seed: int | None, begun: bool) -> None:
    for rank in (0, 1):
        stands = at_rank(rank, [1], seed)
        if begun:
            stands.drawn_seed()
        state = state_of(stands)
        expected = stands.drawn_seed()
        for given in {None, seed} if begun else {seed}:
            other = at_rank(rank, [1], given)
            torch.manual_seed(5 if begun else rank)
            other.load(state, 0)
            assert other.drawn_seed() == expected
        alone = at_rank(0, [1], ranks=1)
        alone.load(state, 0)
        assert not begun or alone.drawn_seed() == expected


def test_the_state_of_an_earlier_release(at_rank: AtRank) -> None:
    """There all ranks had one seed, also under a sampler of each one's own."""
    other = at_rank(1, [1], 7)
    other.load({**state_of(at_rank(1, [1], 7)), "seed": 7}, 0)
    assert other.drawn_seed() == 7


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("saved_by", [0, 1])
def test_ranks_that_go_by_themselves_differ_behind_one_state(at_rank: AtRank, seed: int | None, saved_by: int) -> None:
    stands = at_rank(saved_by, [1], seed)
    stands.drawn_seed()
    state = state_of(stands)
    found = []
    for rank in (0, 1, 2):
        other = at_rank(rank, [1], seed)
        other.load(state, 0)
        found.append(other.drawn_seed())
    assert len(set(found)) == 3
    if seed is not None:
        assert found == [at_rank(rank, [1], seed).drawn_seed() for rank in (0, 1, 2)]


def test_another_seed_than_that_of_the_state_is_refused(at_rank: AtRank) -> None:
    state = state_of(at_rank(1, [1], 7))
    with pytest.raises(ConfigError, match="seed must be the same as when the state was taken"):
        at_rank(1, [1], 8).load(state, 0)
