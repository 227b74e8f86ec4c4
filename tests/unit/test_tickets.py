"""Tickets: the wrapped sampler's order, and a look-ahead that is the same worker's next batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from sophon_loader.client.requests import BatchId
from sophon_loader.tickets import Ticket, TicketSampler


def tickets(batches: list[list[int]], ahead: int) -> list[Ticket]:
    return list(TicketSampler(batches, True, lambda: (3, 7), ahead))


@given(st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=12), st.integers(0, 5))
def test_order_and_look_ahead(batches: list[list[int]], ahead: int) -> None:
    found = tickets(batches, ahead)
    assert [ticket.indices for ticket in found] == batches
    assert [ticket.batch for ticket in found] == [BatchId(3, 7, n) for n in range(len(batches))]
    for number, ticket in enumerate(found):
        following = number + ahead
        if ahead and following < len(batches):
            assert ticket.ahead == (BatchId(3, 7, following), batches[following])
        else:
            assert ticket.ahead is None


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_look_ahead_is_what_the_same_worker_gets_next(workers: int) -> None:
    """DataLoader deals its batches out in turn."""
    found = tickets([[n] for n in range(10)], workers)
    for worker in range(workers):
        mine = found[worker::workers]
        for now, then in itertools.pairwise(mine):
            assert now.ahead == (then.batch, then.indices)


def test_single_indices_of_any_integer_type() -> None:
    order = [3, np.int64(1), torch.tensor(2)]
    found = list(TicketSampler(order, False, lambda: (0, 0), 1))
    assert [ticket.indices for ticket in found] == [[3], [1], [2]]
    assert all(type(index) is int for ticket in found for index in ticket.indices)


def test_a_batch_may_be_a_tensor() -> None:
    found = list(TicketSampler(torch.arange(6).split(4), True, lambda: (0, 0), 1))
    assert [ticket.indices for ticket in found] == [[0, 1, 2, 3], [4, 5]]


class Broken:
    def __init__(self, good: int, entry: object = None) -> None:
        self.good, self.entry = good, entry

    def __iter__(self) -> Iterator[object]:
        yield from ([n] for n in range(self.good))
        if self.entry is None:
            raise KeyError("the sampler is broken")
        yield self.entry


@pytest.mark.parametrize("ahead", [0, 1, 3, 10])
@pytest.mark.parametrize("entry", [None, ["not a number"], 5])
def test_what_comes_before_a_failure_is_delivered_first(ahead: int, entry: object) -> None:
    delivered = []
    with pytest.raises((KeyError, TypeError)):
        for ticket in TicketSampler(Broken(4, entry), True, lambda: (0, 0), ahead):  # type: ignore[arg-type]
            delivered.append(ticket.indices)
    assert delivered == [[0], [1], [2], [3]]


def test_an_endless_sampler_is_read_no_further_than_the_look_ahead() -> None:
    read = 0

    def endless() -> Iterator[list[int]]:
        nonlocal read
        while True:
            read += 1
            yield [read]

    iterator = iter(TicketSampler(endless(), True, lambda: (0, 0), 3))
    next(iterator)
    assert read == 4


def test_its_iteration_is_the_one_it_was_begun_for() -> None:
    """Two iterators of one loader may be open at once; each keeps its own epoch."""
    current = (1, 0)
    sampler = TicketSampler([[0], [1]], True, lambda: current, 1)
    first = iter(sampler)
    current = (2, 1)
    second = iter(sampler)
    assert [next(first).batch, next(second).batch] == [BatchId(1, 0, 0), BatchId(2, 1, 0)]


def test_it_has_the_length_of_what_it_wraps() -> None:
    wrapped = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    assert len(TicketSampler(wrapped, True, lambda: (0, 0), 1)) == 3
    with pytest.raises(TypeError):
        len(TicketSampler(iter([]), True, lambda: (0, 0), 1))
