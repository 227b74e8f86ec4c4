"""Tickets: the wrapped sampler's order, how often each index was met, and where workers find what comes next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from sophon_loader.client.wanted import BatchId
from sophon_loader.epoch.account import Account
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.order.order import Order
from sophon_loader.order.tickets import QueuedTickets, Ticket
from sophon_loader.run.ticket_sampler import TicketSampler


def epoch_of(iteration: int, number: int) -> Epoch:
    return Epoch(iteration, Account("auto", number), pass_length=9, measuring=False, lag=0)


def sampler_of(
    batches: Iterable[Any], batched: bool = True, queued: QueuedTickets | None = None, samples: int = 100
) -> TicketSampler:
    """A sampler in iteration 3, epoch 7."""
    sampler = TicketSampler(Order(None if batched else batches, batches if batched else None, None), samples, queued)
    sampler.epoch = epoch_of(3, 7)
    return sampler


def tickets(batches: Iterable[Any], batched: bool = True, queued: QueuedTickets | None = None) -> list[Ticket]:
    return list(sampler_of(batches, batched, queued))


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12))
def test_order(batches: list[list[int]]) -> None:
    found = tickets(batches)
    assert [ticket.indices for ticket in found] == batches
    assert [ticket.batch for ticket in found] == [BatchId(3, 7, n) for n in range(len(batches))]


@given(st.lists(st.lists(st.integers(-9, 9), max_size=4), max_size=12))
def test_each_sample_says_how_often_it_was_met(batches: list[list[int]]) -> None:
    met = Counter[int]()
    for ticket in tickets(batches):
        for index, occurrence in ticket.samples():
            assert occurrence == met[index % 100]
            met[index % 100] += 1
        assert ticket.occurrences is None or any(ticket.occurrences)


def test_single_indices_of_any_integer_type() -> None:
    order = [3, np.int64(1), torch.tensor(2)]
    found = tickets(order, batched=False)
    assert [ticket.indices for ticket in found] == [[3], [1], [2]]
    assert all(type(index) is int for ticket in found for index in ticket.indices)


def test_a_batch_may_be_a_tensor() -> None:
    assert [ticket.indices for ticket in tickets(torch.arange(6).split(4))] == [[0, 1, 2, 3], [4, 5]]


# --- tickets that are queued ------------------------------------------------------------------------------------


def test_a_queued_ticket_is_found_until_another_takes_its_place() -> None:
    queued = QueuedTickets(4)
    batches = [[n, n, n + 1] for n in range(10)]
    sampler = iter(sampler_of(batches, queued=queued))
    for number in range(10):
        assert queued.get(3, number) is None
        ticket = next(sampler)
        assert queued.get(3, number) == ticket and queued.get(2, number) is None
        assert queued.get(3, number - 4) is None


def test_one_that_is_being_written_is_not_read() -> None:
    queued = QueuedTickets(2)
    tickets([[1, 2, 3]], queued=queued)
    slot = queued._slots._places.array[0]
    for position in range(30):
        slot[position] ^= 1
        assert queued.get(3, 0) is None
        slot[position] ^= 1
    slot[:24] = 255
    assert queued.get(3, 0) is None


@pytest.mark.parametrize("batch", [list(range(60_000)), [1 << 70]])
def test_what_has_no_room_is_left_out(batch: list[int]) -> None:
    queued = QueuedTickets(2)
    assert tickets([batch], queued=queued)[0].indices == batch
    assert queued.get(3, 0) is None


# --- the sampler that is wrapped ----------------------------------------------------------------------------------


class Broken:
    def __init__(self, good: int, entry: object = None) -> None:
        self.good, self.entry = good, entry

    def __iter__(self) -> Iterator[object]:
        yield from ([n] for n in range(self.good))
        if self.entry is None:
            raise KeyError("the sampler is broken")
        yield self.entry


@pytest.mark.parametrize("entry", [None, 5])
def test_what_comes_before_a_failure_is_delivered_first(entry: object) -> None:
    delivered = []
    with pytest.raises((KeyError, TypeError)):
        for ticket in sampler_of(Broken(4, entry), samples=9):
            delivered.append(ticket.indices)
    assert delivered == [[0], [1], [2], [3]]


def test_what_is_no_number_is_left_to_the_worker() -> None:
    order = [["text", 1.5, np.True_, 3], [3]]
    found = tickets(order, queued=QueuedTickets(2))
    assert [ticket.indices for ticket in found] == order
    assert [ticket.occurrences for ticket in found] == [None, [1]]


def test_the_sampler_is_read_one_by_one() -> None:
    read = 0

    def endless() -> Iterator[list[int]]:
        nonlocal read
        while True:
            read += 1
            yield [read]

    iterator = iter(sampler_of(endless(), queued=QueuedTickets(3), samples=9))
    next(iterator)
    assert read == 1


def test_its_iteration_is_the_one_it_was_begun_for() -> None:
    """Two iterators of one loader may be open at once; each keeps its own epoch."""
    sampler = sampler_of([[0], [1]])
    sampler.epoch = epoch_of(1, 0)
    first = iter(sampler)
    sampler.epoch = epoch_of(2, 1)
    second = iter(sampler)
    assert [next(first).batch, next(second).batch] == [BatchId(1, 0, 0), BatchId(2, 1, 0)]


def test_an_iteration_that_was_stopped_goes_on_in_another() -> None:
    sampler, queued = sampler_of([[n] for n in range(5)]), QueuedTickets(2)
    sampler.epoch = epoch_of(1, 0)
    begun = iter(sampler)
    assert [next(begun).indices, next(begun).indices] == [[0], [1]]
    sampler.stop()
    sampler.queued = queued
    assert list(begun) == [] and not sampler.exhausted
    with sampler.going_on():
        iter(sampler)  # DataLoader with workers begins two
        rest = list(iter(sampler))
    assert [ticket.batch.number for ticket in rest] == [2, 3, 4] and queued.get(1, 4) == rest[-1]
    assert sampler.exhausted
    assert len(list(sampler)) == 5 and sampler.exhausted, "a new iteration"


def test_it_has_the_length_of_what_it_wraps() -> None:
    wrapped = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    assert len(sampler_of(wrapped)) == 3
    with pytest.raises(TypeError):
        len(sampler_of(iter([])))
