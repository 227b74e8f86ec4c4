"""num_workers="auto": the batches are those of a fixed number, whenever the number changes, and it does."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from sophon_loader.run import workforce as module
from sophon_loader.run.changing_workers import Relay
from sophon_loader.run.workforce import AutoWorkers, Workforce
from tests.support.loaders import digest_of, samples_of
from tests.support.pictures import folder

FILES = 40
EPOCHS = 3
BATCH = 2
LOADER = {"batch_size": BATCH, "shuffle": True}


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Another number as often as possible; those that there have been."""
    numbers, seen = itertools.cycle([2, 1, 3]), []

    def decide(self: Workforce) -> int:
        self.number = next(numbers)
        seen.append(self.number)
        self._shift = module.Shift()
        return self.number

    monkeypatch.setattr(Workforce, "is_due", property(lambda self: self._shift.batches >= 2))
    monkeypatch.setattr(Workforce, "decide", decide)
    monkeypatch.setattr(Relay, "_worth_it", lambda self: True)
    return seen


def epochs(loader: Any) -> list[Any]:
    """Three epochs, and what torch's generator would give then."""
    torch.manual_seed(5)
    return [*(samples_of(loader) for _ in range(EPOCHS)), torch.rand(())]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"agent": None, "device_prefetch": 2}, {"policy": "sophon"}], ids=["auto", "none", "sophon"]
)
def test_the_batches_are_those_of_a_fixed_number(
    make: Any, restless: list[int], arguments: dict[str, Any], persistent: bool
) -> None:
    expected = epochs(make(num_workers=2, persistent_workers=persistent, **arguments))
    loader = make(num_workers="auto", persistent_workers=persistent, **arguments)
    assert epochs(loader) == expected
    report = loader.report().as_dict()
    assert report["samples"] == FILES and sum(report["choices"].values()) == FILES
    assert report["workers"] == loader.num_workers
    planned = arguments.get("policy") == "sophon"
    assert len(restless) < EPOCHS if planned else len(restless) > EPOCHS, "between epochs, or in them"


def test_the_epoch_goes_on_from_a_state_that_is_taken_between_changes(make: Any, restless: list[int]) -> None:
    expected = samples_of(make(seed=3, generator=torch.Generator().manual_seed(1)))
    for stop in (1, 4, 7, 12):
        loader = make(seed=3, num_workers="auto", generator=torch.Generator().manual_seed(1))
        begun = samples_of(itertools.islice(loader, stop))
        other = make(seed=3, num_workers="auto", generator=torch.Generator().manual_seed(2))
        other.load_state_dict(loader.state_dict())
        assert begun + samples_of(other) == expected
    assert restless


def test_an_iteration_that_a_newer_one_has_passed_still_gives_all(make: Any, restless: list[int]) -> None:
    loader = make(seed=3, num_workers="auto", shuffle=False)
    expected = [samples_of(make(seed=3, shuffle=False))]
    old = iter(loader)
    begun = []
    while not old._batches._stopped:
        begun.append(next(old))
    newer = samples_of(loader)
    assert samples_of([*begun, *old]) == expected[0] and len(newer) == FILES


def test_a_copy_and_a_loader_made_from_its_attributes_find_the_number_too(make: Any) -> None:
    loader = make(num_workers="auto")
    again = OffloadingDataLoader(loader.dataset, num_workers=loader.num_workers)
    for one in (loader, copy.deepcopy(loader), again):
        assert isinstance(one.num_workers, AutoWorkers) and one._workforce is not None
    loader.num_workers = 3
    assert len(samples_of(loader)) == FILES and loader.report().workers == 3, "a number that is set is fixed"


class Slow:
    """An op of the user's own that waits."""

    def __call__(self, image: Any) -> Any:
        time.sleep(0.02)
        return image


def test_workers_that_limit_become_more_and_idle_ones_fewer(
    root: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHIFT_S", 0.2)
    monkeypatch.setattr(module, "STARTS_PER_SHIFT", 1)
    transform = v1.Compose([v1.Resize((8, 8)), v1.ToTensor(), Slow()])
    loader = make(folder(root, transform), None, num_workers="auto", sampler=Endless(), shuffle=None, batch_size=1)
    loader._workforce._cores = 100.0
    loader._workforce.most, loader._workforce.number = 8, 1
    batches = iter(loader)
    until(batches, lambda: loader.num_workers >= 2, step_s=0.0)
    until(batches, lambda: loader.num_workers == 1, step_s=0.1)
    assert digest_of(next(batches)[0])


class Endless(torch.utils.data.Sampler[int]):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(FILES))


def until(batches: Any, condition: Any, step_s: float) -> None:
    """Train, in steps of so many seconds, until something is so."""
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        next(batches)
        time.sleep(step_s)
