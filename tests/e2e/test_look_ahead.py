"""Loaders whose workers are told of what comes, from the first batch on: a loop sees what it sees of torch's loader."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from tests.support.loaders import samples_of
from tests.support.pictures import folder, make_tree

FILES = 23
LOADER: dict[str, Any] = {"policy": "all-off", "batch_size": 3, "num_workers": 2}
SMALL = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("all") / "pictures", FILES, sides=(16, 40))


def looking(loader: OffloadingDataLoader[Any], batches: int = 7) -> OffloadingDataLoader[Any]:
    """The same, whose workers have starved before."""
    loader._place.order.look_ahead.batches = batches
    loader._place.order.look_ahead.most = batches
    return loader


SAMPLERS: dict[str, Callable[[torch.Generator | None], dict[str, Any]]] = {
    "sequential": lambda generator: {"generator": generator},
    "shuffled": lambda generator: {"shuffle": True, "generator": generator},
    "replacing": lambda g: {"sampler": RandomSampler(range(FILES), True, 40, generator=g)},
    "subset": lambda g: {"sampler": SubsetRandomSampler(range(0, FILES, 2), generator=g)},
    "weighted": lambda g: {"sampler": WeightedRandomSampler([1.0 + n for n in range(FILES)], 40, generator=g)},
}


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_generators_stand_where_they_stand_with_torch(
    root: Path, make: Any, kind: str, given: bool, persistent_workers: bool
) -> None:
    """Between two batches, behind a break, and in the epochs behind that; two loaders share one generator."""
    seen = []
    for ours in (False, True):
        torch.manual_seed(2)
        generator = torch.Generator().manual_seed(4) if given else None
        pair: list[DataLoader[Any]] = []
        for _ in range(2):
            data = folder(root, SMALL)
            how = {**SAMPLERS[kind](generator), "persistent_workers": persistent_workers}
            if not ours:
                pair.append(DataLoader(data, 3, num_workers=2, **how))
            else:
                pair.append(looking(make(data, **how, seed=1)))
        states: list[Any] = []
        for loader, batches in [(pair[0], 2), (pair[1], 99), (pair[0], 99), (pair[1], 1), (pair[0], 3)]:
            for _, targets in itertools.islice(loader, batches):
                states.append((targets.tolist(), torch.get_rng_state().sum().item()))
                states.append(0 if generator is None else generator.get_state().sum().item())
                torch.rand(()), torch.rand((), generator=generator)
            states.append((torch.get_rng_state().sum().item(), generator and generator.get_state().sum().item()))
        seen.append(states)
        if ours:
            report = pair[0].report()  # type: ignore[attr-defined]
            assert report.totals.fallbacks == 0
    assert seen[0] == seen[1]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_from_any_position_goes_on_alike(root: Path, make: Any, kind: str) -> None:
    def loader(ahead: int) -> OffloadingDataLoader[Any]:
        torch.manual_seed(2)
        made: OffloadingDataLoader[Any] = make(folder(root, SMALL), **SAMPLERS[kind](torch.Generator().manual_seed(3)))
        return looking(made, ahead)

    whole, states = [], []
    plain = loader(0)
    for batch in plain:
        whole.append(samples_of([batch]))
        states.append(plain.state_dict())
    far = loader(7)
    for number, batch in enumerate(far):
        assert samples_of([batch]) == whole[number]
        assert far.state_dict() == states[number]
    told = any("torch has yet to hand out" in note for note in far.report().notes)
    assert told == (kind != "replacing"), "that one draws from the generator with every 32 indices"
    for number in range(0, len(states), 2):
        again = loader(7)
        again.load_state_dict(states[number])
        assert [samples_of([batch]) for batch in again] == whole[number + 1 :]


def test_an_iteration_that_is_left_and_another_one(root: Path, make: Any) -> None:
    """Workers that go on forget what they were told of the first; no sample of it comes in the second."""
    far, plain = (looking(make(folder(root, SMALL), seed=1, persistent_workers=True), n) for n in (7, 0))
    for loader in (far, plain):
        for _ in itertools.islice(loader, 2):
            pass
    next(iter(far))
    next(iter(plain))
    assert samples_of(far) == samples_of(plain)
    assert far.report().totals.samples == FILES


def test_what_a_framework_makes_of_it_looks_ahead_too(root: Path, make: Any) -> None:
    """It hands on the attributes; a number that the user gave is kept as it is."""
    for given, room in ((None, True), (2, False)):
        loader = make(prefetch_factor=given)
        other = make(prefetch_factor=loader.prefetch_factor)
        assert loader.prefetch_factor == other.prefetch_factor == 2
        for one in (loader, other):
            next(iter(one))
            assert (one._place.order.look_ahead.most > 0) == room
