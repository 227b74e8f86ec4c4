"""num_workers="auto": which number is tried, kept and given up, from what passed alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from sophon_loader.run.workforce import (
    BATCHES_PER_WORKER,
    FIRST_PAUSE,
    LONGEST_SHIFT_S,
    SHIFT_S,
    STARTS_PER_SHIFT,
    AutoWorkers,
    Shift,
    Workforce,
    asked_for,
    own_cores,
)

SECONDS = 10.0


def shift(samples_s: float, *, awaited: float, occupied: float, cpu: float) -> Shift:
    """Ten seconds: shares of the time, and numbers of workers and cores."""
    return Shift(SECONDS, 1000, round(samples_s * SECONDS), *(SECONDS * one for one in (awaited, occupied, cpu)))


class Job:
    """A training job whose loader is as fast as its slowest part.

    Args:
        step_s: samples/s that the training takes.
        worker_s: samples/s that a worker makes.
        wire_s: samples/s that cross.
        cores: of the loader.
    """

    def __init__(self, step_s: float, worker_s: float, wire_s: float = math.inf, cores: float = 8.0) -> None:
        self.step_s, self.worker_s, self.wire_s, self.cores = step_s, worker_s, wire_s, cores

    def shift(self, workers: int) -> Shift:
        """What passes with so many workers."""
        busy = min(workers, self.cores)
        loads_s = min(busy * self.worker_s, self.wire_s)
        samples_s = min(loads_s, self.step_s)
        working = samples_s / self.worker_s
        occupied = float(workers) if loads_s < self.step_s else working
        awaited = max(0.0, 1 - samples_s / self.step_s)
        return shift(samples_s, awaited=awaited, occupied=occupied, cpu=working)

    def run(self, workforce: Workforce, shifts: int) -> list[int]:
        """The numbers that follow each other."""
        numbers = []
        for _ in range(shifts):
            workforce.passed(self.shift(workforce.number))
            assert workforce.is_due
            numbers.append(workforce.decide())
        return numbers


def test_workers_that_limit_are_added_until_the_training_does_not_wait() -> None:
    assert Job(step_s=700, worker_s=100).run(Workforce(8.0, number=1), 6) == [2, 4, 8, 8, 8, 8]


def test_no_more_than_the_cores_can_work() -> None:
    assert max(Job(step_s=1e6, worker_s=100).run(Workforce(8.0), 20)) == 8
    workforce = Workforce(8.0)
    for _ in range(5):  # those that only wait
        faster = shift(100.0 * workforce.number, awaited=0.9, occupied=workforce.number, cpu=0.1)
        workforce.passed(faster)
        workforce.decide()
    assert workforce.number == workforce.most == 16


def test_a_full_wire_is_found_out_and_tried_again_ever_more_rarely() -> None:
    numbers = Job(step_s=1e6, worker_s=100, wire_s=200).run(Workforce(8.0, number=2), 80)
    tried = [n for n, number in enumerate(numbers) if number == 4]
    assert tried[0] == 0 and set(numbers) == {2, 4}
    gaps = [after - before for before, after in itertools.pairwise(tried)]
    assert gaps[0] > FIRST_PAUSE and gaps == sorted(gaps) and len(set(gaps)) == len(gaps)


def test_idle_workers_are_taken_away() -> None:
    assert Job(step_s=150, worker_s=100).run(Workforce(8.0, number=8), 4) == [2, 2, 2, 2]
    assert Job(step_s=50, worker_s=100).run(Workforce(8.0, number=4), 4) == [1, 1, 1, 1]


def test_workers_that_were_needed_after_all_come_back_and_stay() -> None:
    """Bursts: on average one is occupied, and with one the training waits."""
    workforce = Workforce(8.0, number=4)
    numbers = []
    for _ in range(FIRST_PAUSE):
        starved = workforce.number < 4
        workforce.passed(shift(80.0 if starved else 100.0, awaited=0.01, occupied=1.5, cpu=1.0))
        numbers.append(workforce.decide())
    assert numbers[0] == 2 and set(numbers[1:]) == {4}


def test_in_other_circumstances_all_may_be_tried_again() -> None:
    workforce = Workforce(8.0, number=2)
    assert Job(step_s=1e6, worker_s=100, wire_s=200).run(workforce, 3) == [4, 2, 2]
    assert Job(step_s=1e6, worker_s=40).run(workforce, 4) == [4, 8, 8, 8], "the wire is no limit any more"


def test_between_the_bounds_nothing_changes() -> None:
    workforce = Workforce(8.0, number=3)
    workforce.passed(shift(100.0, awaited=0.03, occupied=1.0, cpu=1.0))
    assert workforce.decide() == 3


def test_what_is_refused_is_as_if_it_had_not_been_tried() -> None:
    workforce = Workforce(8.0, number=2)
    assert Job(step_s=1e6, worker_s=100).run(workforce, 1) == [4]
    workforce.refused(2)
    assert Job(step_s=1e6, worker_s=100).run(workforce, FIRST_PAUSE - 1) == [2] * (FIRST_PAUSE - 1)
    assert Job(step_s=1e6, worker_s=100).run(workforce, 1) == [4]


def test_a_number_is_looked_at_for_long_enough() -> None:
    workforce = Workforce(4.0)
    workforce.passed(Shift(SHIFT_S - 0.1, 100))
    assert not workforce.is_due and workforce.at_epoch() == 2
    workforce.passed(Shift(0.2))
    assert workforce.is_due
    workforce.start_s = 1.0
    assert not workforce.is_due and workforce.shift_s == STARTS_PER_SHIFT
    workforce.start_s = 1e3
    assert workforce.shift_s == LONGEST_SHIFT_S
    few = Workforce(4.0)
    few.passed(Shift(1e4, BATCHES_PER_WORKER * 2 - 1))
    assert not few.is_due


def test_what_is_clearly_worse_is_not_looked_at_for_long() -> None:
    workforce = Workforce(8.0, number=2)
    workforce.start_s = 1e3
    workforce.passed(Shift(LONGEST_SHIFT_S, 1000, 6000, LONGEST_SHIFT_S, 1.0, 1.0))
    assert workforce.is_due and workforce.decide() == 4
    workforce.passed(Shift(SHIFT_S, 100, 490, SHIFT_S, 1.0, 1.0))
    assert not workforce.is_due
    workforce.passed(Shift(SHIFT_S, 100, 100, SHIFT_S, 1.0, 1.0))
    assert workforce.is_due and workforce.decide() == 2


@pytest.mark.parametrize(("cores", "number", "most"), [(0.5, 1, 1), (1, 1, 2), (2, 1, 4), (4, 2, 8), (64, 4, 128)])
def test_a_few_at_first(cores: float, number: int, most: int) -> None:
    assert (Workforce(cores).number, Workforce(cores).most) == (number, most)


def test_ranks_of_a_host_share_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_cores(8.0) == 8.0
    for value, cores in (("4", 2.0), ("0", 8.0), ("many", 8.0)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
        assert own_cores(8.0) == cores


# --- the argument -----------------------------------------------------------------------------------------------


def test_a_number_that_was_found_is_asked_for_as_auto() -> None:
    number, workforce = asked_for(AutoWorkers(3), 8.0, iterable=False)
    assert number == 3 and isinstance(number, AutoWorkers) and workforce is not None and workforce.number == 3
    assert asked_for(3, 8.0, iterable=False) == (3, None)
    assert asked_for("auto", 8.0, iterable=False)[0] == 4


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: OffloadingDataLoader(Endless(), num_workers="auto"), "num_workers must be an int for an iterable"),
        (lambda: OffloadingDataLoader(torch.arange(3), num_workers="all"), "must be an int or 'auto', got 'all'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


def test_a_plain_loader_has_one_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sophon_loader.run.parts.cores_available", lambda: 3.0)
    loader = OffloadingDataLoader(torch.utils.data.TensorDataset(torch.arange(6)), 2, num_workers="auto")
    assert loader.num_workers == 3 and sum(len(one[0]) for one in loader) == 6
    assert any("num_workers is 3, from the number of cores" in note for note in loader.report().notes)
