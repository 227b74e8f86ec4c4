"""An epoch's iterator: what it delivers, what it tells, and how an endless iteration falls into passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.device.step_clock import StepClock
from sophon_loader.epoch.account import Account
from sophon_loader.epoch.epoch import Epoch, EpochIterator
from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.measures.moment import Moment
from sophon_loader.order.order import Order
from sophon_loader.order.reading import Reading


class Recorder:
    """An engine, as far as an epoch tells it something."""

    def __init__(self) -> None:
        self.step_clock = StepClock()
        self.events: list[Any] = []
        self.failure: Exception | None = None

    def wanted(self) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def progressed(self, epoch: Epoch, seconds: float) -> None:
        totals = replace(NO_TOTALS, samples=epoch.delivered)
        epoch.account.now = Moment(seconds, totals, epoch.awaited_s, epoch.delivered)

    def delivered(self, epoch: Epoch, seconds: float, samples: int) -> None:
        self.events.append(samples)

    def turned_over(self, epoch: Epoch) -> None:
        self.events.append("pass")
        epoch.turn_over()

    def finished(self, epoch: Epoch) -> None:
        self.events.append("end")


def epoch_of(sizes: list[int], pass_length: int = 100) -> Epoch:
    epoch = Epoch(1, Account("auto", 0), pass_length=pass_length, measuring=False, lag=0)
    epoch.reading = read(sizes)
    return epoch


def read(sizes: list[int]) -> Reading:
    """An order in batches of these sizes, read to its end."""
    numbers = iter(range(sum(sizes)))
    order = Order(None, [[next(numbers) for _ in range(size)] for size in sizes], None)
    reading = iter(order)
    for _ in reading:
        pass
    return reading


def test_it_counts_and_tells_of_every_batch_but_the_first() -> None:
    """The first has waited for workers to start, so the time to it says nothing of the plan."""
    recorder, epoch = Recorder(), epoch_of([4, 4, 2])
    assert list(EpochIterator(recorder, epoch, iter("abc"), 3, None)) == ["a", "b", "c"]
    assert epoch.delivered == 10
    assert recorder.events == [4, 2, "end"]


def test_batches_that_come_in_another_order_bring_their_own_sizes() -> None:
    recorder, epoch = Recorder(), epoch_of([4, 7, 2])
    assert epoch.reading is not None
    for number in (1, 0, 2):
        epoch.reading.comes(number)
    batches = EpochIterator(recorder, epoch, iter("bac"), 3, None)
    assert [batches.last_size for _ in batches] == [7, 4, 2]


def test_an_iteration_that_goes_on_turns_over() -> None:
    recorder, epoch = Recorder(), epoch_of([5] * 7, pass_length=10)
    list(EpochIterator(recorder, epoch, iter(range(7)), None, None))
    assert [event for event in recorder.events if event == "pass"] == ["pass"] * 3
    assert epoch.account.report().passes == 3


def test_a_pass_is_what_came_since_the_one_before() -> None:
    epoch = epoch_of([])
    epoch.account.now = Moment(4.0, replace(NO_TOTALS, samples=10, wire_bytes=500), 0.0, 10)
    epoch.turn_over()
    epoch.account.now = Moment(7.0, replace(NO_TOTALS, samples=25, wire_bytes=900), 0.0, 25)
    seconds, totals = epoch.this_pass()
    assert (seconds, totals.samples, totals.wire_bytes) == (3.0, 15, 400)


def test_one_that_a_newer_one_has_superseded_tells_nothing_more() -> None:
    recorder, epoch = Recorder(), epoch_of([4, 4, 2])
    batches = EpochIterator(recorder, epoch, iter("abc"), 3, None)
    next(batches)
    epoch.superseded = True
    assert list(batches) == ["b", "c"], "its batches are still the user's"
    assert recorder.events == []


def test_a_batch_that_fails_takes_its_size_along() -> None:
    recorder, epoch = Recorder(), epoch_of([4, 7, 2])

    class Failing(Iterator[str]):
        def __init__(self) -> None:
            self.left = ["a", ValueError("bad"), "c"]

        def __next__(self) -> str:
            if not self.left:
                raise StopIteration
            one = self.left.pop(0)
            if isinstance(one, ValueError):
                raise one
            return str(one)

    iterator = EpochIterator(recorder, epoch, Failing(), 3, None)
    assert next(iterator) == "a"
    with pytest.raises(ValueError, match="bad"):
        next(iterator)
    assert list(iterator) == ["c"]
    assert epoch.delivered == 4 + 2


def test_what_the_agent_did_wrong_comes_before_the_next_batch_and_costs_none() -> None:
    recorder, epoch = Recorder(), epoch_of([4, 7, 2])
    batches = EpochIterator(recorder, epoch, iter("abc"), 3, None)
    assert next(batches) == "a"
    recorder.failure = ConnectionError("no agent")
    with pytest.raises(ConnectionError, match="no agent"):
        next(batches)
    assert list(batches) == ["b", "c"]
    assert epoch.delivered == 13


def test_its_length_is_known_or_an_error() -> None:
    assert len(EpochIterator(Recorder(), epoch_of([]), iter([]), 3, None)) == 3
    with pytest.raises(TypeError, match="must be known"):
        len(EpochIterator(Recorder(), epoch_of([]), iter([]), None, None))
