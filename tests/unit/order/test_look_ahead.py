"""What workers are told of before torch asks for it: the batches that come, of samplers whose order cannot change, with
nothing drawn earlier than by torch."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from sophon_loader.epoch.account import Account
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.order.look_ahead import WHILE_S, LookAhead, may_be_foreseen
from sophon_loader.order.order import Order
from sophon_loader.order.sharding import ShardSampler, order_of
from sophon_loader.order.tickets import SLOT_NBYTES, QueuedTickets, Ticket, room_ahead, slot_nbytes
from sophon_loader.run.ticket_sampler import TicketSampler

N = 23
AHEAD = 9
SLOTS = 16


class Own(Sampler[int]):
    """A sampler of the user's, which notes how far it has been read."""

    def __init__(self, fails_at: int = N) -> None:
        self.read, self.fails_at = 0, fails_at

    def __iter__(self) -> Iterator[int]:
        for index in range(N):
            if index == self.fails_at:
                raise KeyError("the sampler is broken")
            self.read += 1
            yield index * 7 % N

    def __len__(self) -> int:
        return N


class Told(Own):
    may_be_read_ahead = True


class ToldBatches(Sampler[list[int]]):
    may_be_read_ahead = True

    def __iter__(self) -> Iterator[list[int]]:
        for n in range(9):
            yield [n] * (n % 3 + 1)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


WEIGHTS = [1.0 + n for n in range(N)]
DATA: Any = range(N)
SAMPLERS: dict[str, Callable[[torch.Generator | None], Any]] = {
    "sequential": lambda g: SequentialSampler(DATA),
    "random": lambda g: RandomSampler(DATA, generator=g),
    "more": lambda g: RandomSampler(DATA, num_samples=2 * N + 5, generator=g),
    "fewer": lambda g: RandomSampler(DATA, num_samples=N - 5, generator=g),
    "replacing": lambda g: RandomSampler(DATA, replacement=True, num_samples=70, generator=g),
    "subset": lambda g: SubsetRandomSampler(range(0, N, 2), generator=g),
    "weighted": lambda g: WeightedRandomSampler(WEIGHTS, 60, generator=g),
    "distributed": lambda g: DistributedSampler(DATA, num_replicas=2, rank=1, seed=3),
    "own": lambda g: Own(),
    "told": lambda g: Told(),
}


def tickets_of(order: Order, ahead: int = AHEAD) -> tuple[TicketSampler, QueuedTickets]:
    """What torch reads, of an order whose workers are told of `ahead` batches, in the first iteration."""
    queued = QueuedTickets(SLOTS, 4096)
    sampler = TicketSampler(order, N, queued)
    order.look_ahead.allow(ahead, workers=1)
    order.look_ahead.batches = ahead
    sampler.epoch = Epoch(1, Account("auto", 0), pass_length=N, measuring=False, lag=0)
    return sampler, queued


def loop(entries: Iterator[Any], generator: torch.Generator | None) -> Iterator[tuple[list[int], float, Any]]:
    """What a loop sees that draws from the same generators as its sampler between two batches."""
    for entry in entries:
        indices = entry.indices if isinstance(entry, Ticket) else entry
        drawn = float(torch.rand(()))
        yield indices, drawn, None if generator is None else float(torch.rand((), generator=generator))
    yield [], float(torch.rand(())), None if generator is None else float(torch.rand((), generator=generator))


@pytest.mark.parametrize("kind", SAMPLERS)
@given(size=st.integers(1, 9), drop_last=st.booleans(), given_one=st.booleans(), until=st.integers(0, 40))
def test_a_loop_sees_what_it_sees_without(kind: str, size: int, drop_last: bool, given_one: bool, until: int) -> None:
    """Order, and what it draws itself from the sampler's generators between batches and behind a break or the end."""
    found = []
    for ours in (False, True):
        torch.manual_seed(1)
        generator = seeded() if given_one else None
        batches = BatchSampler(SAMPLERS[kind](generator), size, drop_last)
        entries = iter(tickets_of(order_of(None, batches, None, drop_last))[0]) if ours else iter(batches)
        seen = list(itertools.islice(loop(entries, generator), until))
        after = torch.get_rng_state().sum(), None if generator is None else generator.get_state().sum()
        found.append((seen, after))
    assert found[0] == found[1]


@pytest.mark.parametrize("given_one", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_what_workers_are_told_comes(kind: str, given_one: bool) -> None:
    """Of torch's samplers, as far as nothing is drawn; with how often each index has been met."""
    torch.manual_seed(1)
    batches = BatchSampler(SAMPLERS[kind](seeded() if given_one else None), 4, False)
    sampler, queued = tickets_of(Order(None, batches, None))
    told: dict[int, Ticket] = {}
    for number, ticket in enumerate(sampler):
        assert told.setdefault(number, ticket) == ticket
        for later in range(number + 1, number + AHEAD + 1):
            if (early := queued.get(1, later)) is not None:
                assert told.setdefault(later, early) == early
        foreseen = max(told) - number
        if number == 0:
            unknown = kind == "own" or (kind == "replacing" and given_one)
            assert foreseen == (0 if unknown else min(AHEAD, _full(kind, given_one) - 1))


def _full(kind: str, given_one: bool) -> int:
    """Batches of four that are drawn together with the first."""
    more = N if given_one else 2 * N + 5
    others = {"fewer": N - 5, "replacing": 70, "subset": 12, "weighted": 60, "distributed": 12}
    return {"more": more, **others}.get(kind, N) // 4


def test_the_next_draw_of_a_generator_that_others_use_waits_for_its_time() -> None:
    batches = BatchSampler(RandomSampler(DATA, num_samples=3 * N, generator=seeded()), 5, False)
    sampler, queued = tickets_of(Order(None, batches, None))
    entries = iter(sampler)
    next(entries)
    assert [queued.get(1, n) is not None for n in range(1, 6)] == [True, True, True, False, False]


def test_without_batches_each_index_is_a_batch() -> None:
    order = Order(RandomSampler(DATA), None, None)
    sampler, queued = tickets_of(order)
    entries = iter(sampler)
    next(entries)
    told = [queued.get(1, n) for n in range(1, AHEAD + 1)]
    assert told == list(itertools.islice(entries, AHEAD))


def test_a_sampler_of_ones_own_is_read_when_torch_reads_it() -> None:
    own = Own()
    entries = iter(tickets_of(Order(None, BatchSampler(own, 4, False), None))[0])
    for number in range(1, 4):
        next(entries)
        assert own.read == 4 * number


def test_one_that_says_so_is_read_ahead_and_fails_in_its_turn() -> None:
    told = Told(fails_at=14)
    entries = iter(tickets_of(Order(None, BatchSampler(told, 4, False), None))[0])
    next(entries)
    assert told.read == 14
    assert [len(ticket.indices) for ticket in itertools.islice(entries, 2)] == [4, 4]
    with pytest.raises(KeyError, match="broken") as caught:
        next(entries)
    assert "test_look_ahead.py" in "".join(traceback.format_exception(caught.value)), "the sampler's line is told"


def test_batches_of_ones_own_that_say_so() -> None:
    sampler, queued = tickets_of(Order(None, ToldBatches(), None), ahead=4)
    entries = iter(sampler)
    first = next(entries)
    told = [queued.get(1, n) for n in range(1, 5)]
    rest = list(entries)
    assert [ticket.indices for ticket in [first, *rest]] == list(ToldBatches()) and told == rest[:4]


def test_ranks_are_told_of_their_own_batches() -> None:
    shard = ShardSampler(DATA, shuffle=False)
    sampler, queued = tickets_of(order_of(shard, BatchSampler(shard, 4, False), None, False))
    entries = iter(sampler)
    next(entries)
    told = [queued.get(1, n) for n in range(1, 7)]
    rest = list(entries)
    assert told == [*rest, None] and [len(ticket.indices) for ticket in rest] == [4, 4, 4, 4, 3]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_batch_size_that_changes_on_the_way_counts_at_once(sizes: list[int]) -> None:
    """As in torch."""
    found = []
    for ours in (False, True):
        batches = BatchSampler(WeightedRandomSampler(WEIGHTS, 60, generator=seeded()), 4, False)
        entries: Iterator[Any] = iter(tickets_of(Order(None, batches, None))[0]) if ours else iter(batches)
        seen: list[list[int]] = []
        for size in sizes:
            entry = next(entries, None)
            if entry is None:
                break
            seen.append(entry.indices if ours else entry)
            batches.batch_size = size
        found.append(seen)
    assert found[0] == found[1]


@pytest.mark.parametrize("given_one", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in SAMPLERS if kind not in ("own", "told")])
def test_a_state_from_any_position_goes_on_alike(kind: str, given_one: bool) -> None:
    def order(ahead: int) -> tuple[Order, TicketSampler]:
        torch.manual_seed(1)
        one = Order(None, BatchSampler(SAMPLERS[kind](seeded() if given_one else None), 4, False), None)
        return one, tickets_of(one, ahead)[0]

    plain, tickets = order(0)
    positions, whole = [], []
    for ticket in tickets:
        assert plain.newest is not None
        plain.newest.passed()
        positions.append(plain.newest.position)
        whole.append(ticket)
    for ahead, (number, expected) in itertools.product((0, AHEAD), enumerate(positions)):
        one, tickets = order(ahead)
        entries = iter(tickets)
        for _ in range(number + 1):
            next(entries)
            assert one.newest is not None
            one.newest.passed()
        assert one.newest is not None and one.newest.position == expected
        again, tickets = order(ahead)
        again.start = expected
        assert [t[1:] for t in tickets] == [t[1:] for t in whole[number + 1 :]]


def test_what_was_told_is_told_again_to_workers_that_take_over() -> None:
    sampler, _ = tickets_of(Order(None, BatchSampler(SequentialSampler(DATA), 4, False), None))
    entries = iter(sampler)
    next(entries)
    sampler.stop()
    assert list(entries) == []
    sampler.queued = others = QueuedTickets(SLOTS, 4096)
    with sampler.going_on():
        entries = iter(sampler)
    next(entries)
    told = [others.get(1, n) for n in range(2, 5)]
    assert told == list(itertools.islice(entries, 3))


def test_another_batch_size_is_told_anew() -> None:
    batches = BatchSampler(SequentialSampler(DATA), 4, False)
    sampler, queued = tickets_of(Order(None, batches, None))
    entries = iter(sampler)
    next(entries)
    batches.batch_size = 3
    next(entries)
    told = [queued.get(1, n) for n in range(2, 6)]
    assert told == list(itertools.islice(entries, 4)) and [len(ticket.indices) for ticket in told if ticket] == [3] * 4


# --- how far ------------------------------------------------------------------------------------------------------


def test_workers_that_do_not_starve_are_told_of_no_more() -> None:
    ahead = LookAhead()
    ahead.allow(100, workers=4)
    assert not any(ahead.passed(float(n), starved_s=0.06 * n) for n in range(20)), "a fiftieth of four workers' time"
    assert ahead.batches == 0


def starving(shares: Sequence[float]) -> list[bool]:
    """Whether a worker was told of more, while by while in which it starved for so much."""
    ahead = LookAhead()
    ahead.allow(100, workers=1)
    passed_s = [WHILE_S * n for n in range(len(shares) + 1)]
    starved_s = itertools.accumulate((WHILE_S * share for share in shares), initial=0.0)
    return [ahead.passed(*at) for at in zip(passed_s, starved_s, strict=True)][1:]


def test_workers_that_starve_a_little_all_the_time_are_told_of_more() -> None:
    """As measured over 30 ms with 16 samples to a batch, at the cost of a tenth of the images/s."""
    assert any(starving([0.066, 0.016, 0.033, 0.035, 0.039, 0.014, 0.03, 0.009, 0.033]))


def test_a_hiccup_over_a_short_way_is_no_starving() -> None:
    assert not any(starving([0.0, 0.6, 0.0, 0.015, 0.4, 0.0, 0.0]))


def test_a_step_needs_no_longer_than_a_while_once_workers_starve() -> None:
    assert starving([0.5] * 5) == [False, False, True, True, True]


def test_workers_that_start_together_over_a_short_way_are_told_of_no_more() -> None:
    """As measured of four."""
    assert not any(starving([0.0, 0.36, 0.05, 0.0, 0.018, 0.0]))


def test_what_starting_took_counts_for_nothing() -> None:
    ahead = LookAhead()
    ahead.allow(100, workers=1)
    assert not any(ahead.passed(9.0 + n, starved_s=9.0) for n in range(5))
    ahead.begin()
    assert not any(ahead.passed(0.1 + n, starved_s=0.1) for n in range(5)), "nor in the next epoch"


def test_it_grows_no_faster_than_it_shows_and_not_beyond_what_there_is_room_for() -> None:
    ahead = LookAhead()
    ahead.allow(11, workers=2)
    seen = []
    for step in range(40):
        now_s = step * WHILE_S / 2
        ahead.passed(now_s, starved_s=2 * now_s)
        seen.append(ahead.batches)
    assert seen[:13] == [0, 0, 0, 0, 0, 0, 2, 2, 4, 4, 8, 8, 11] and seen[-1] == 11
    ahead.allow(3, workers=1)
    assert ahead.batches == 3


@pytest.mark.parametrize("size", [1, 16, 200, 256, 3000, 100_000])
def test_memory_is_bounded_and_a_ticket_has_room(size: int) -> None:
    nbytes = slot_nbytes(size)
    assert room_ahead(nbytes) * nbytes <= 1 << 20 and nbytes <= SLOT_NBYTES
    if size <= 3000:
        queued = QueuedTickets(1, nbytes)
        sampler, _ = tickets_of(Order(None, [[(1 << 62) + n for n in range(size)]], None))
        ticket = next(iter(sampler))._replace(occurrences=[1 << 40] * size)
        queued.put(ticket)
        assert queued.get(1, 0) == ticket


def test_which_may_be_foreseen() -> None:
    class Mine(RandomSampler):
        pass

    known = [kind for kind in SAMPLERS if may_be_foreseen(SAMPLERS[kind](None))]
    assert known == [kind for kind in SAMPLERS if kind != "own"]
    assert not may_be_foreseen(Mine(DATA)) and not may_be_foreseen([3, 4])
    assert not may_be_foreseen(SAMPLERS["replacing"](seeded()))
