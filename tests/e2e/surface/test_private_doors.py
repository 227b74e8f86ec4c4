"""Methods of DataLoader that frameworks call or override in subclasses, by the names that begin with an underscore."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import OffloadWarning
from tests.support.agents import Agent
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, train_transform

FILES = 8


class Endless(BatchSampler):
    """The batches of one epoch after those of the other."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.batches

    def __len__(self) -> int:
        return len(self.batches)


class Reset(OffloadingDataLoader[Any]):
    """Reads one iterator through all epochs; takes another one when it is told to, as detection trainers do."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        return islice(self.iterator, len(self))

    def reset(self) -> None:
        self.iterator = self._get_iterator()


class Reopened(Reset):
    """Makes torch's class assignable for its sampler, as classification trainers do."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        OffloadingDataLoader.__init__(self, *arguments, **named)
        self._DataLoader__initialized = False
        self.batch_sampler = Endless(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = OffloadingDataLoader.__iter__(self)


class Wrapped(OffloadingDataLoader[Any]):
    """Puts something around each iterator."""

    taken = 0

    def _get_iterator(self) -> Any:
        self.taken += 1
        yield from super()._get_iterator()


@pytest.fixture
def build(root: Path, agent: Agent) -> Iterator[Callable[..., Any]]:
    made = []

    def one(of: type[OffloadingDataLoader[Any]] = OffloadingDataLoader, workers: int = 0, **named: Any) -> Any:
        given = {"agent": agent.address(), "policy": "all-off", "options": QUICK, "seed": 3, **named}
        made.append(of(given.pop("dataset", folder(root, train_transform())), 4, num_workers=workers, **given))
        return made[-1]

    yield one
    for loader in made:
        loader.close()


@pytest.mark.parametrize("of", [Reset, Reopened])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_reset_loader_goes_on_at_the_agent(build: Callable[..., Any], of: type[Reset], workers: int) -> None:
    loader, usual = build(of, workers), build(agent=None)
    assert samples_of(loader) == samples_of(usual)
    loader.reset()
    assert samples_of(loader) == samples_of(usual)
    report = loader.report().as_dict()
    assert (report["epoch"], report["samples"] >= FILES, report["offloading"]) == (1, True, True)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("plain", [False, True])
def test_an_iterator_that_a_subclass_wraps_is_the_one_that_comes(
    build: Callable[..., Any], root: Path, plain: bool, workers: int
) -> None:
    named: dict[str, Any] = {"persistent_workers": workers > 0}
    if plain:
        named |= {"agent": None, "dataset": torch.arange(8.0)}
    loader, usual = build(Wrapped, workers, **named), build(workers=workers, **named)
    for count in (1, 2):
        assert [str(batch) for batch in loader] == [str(batch) for batch in usual]
        assert loader.taken == count


@pytest.mark.parametrize(
    ("workers", "of_torch"), [(0, _SingleProcessDataLoaderIter), (1, _MultiProcessingDataLoaderIter)]
)
def test_torchs_own_iterator_says_what_it_passes_by(
    build: Callable[..., Any], workers: int, of_torch: Callable[[Any], Any]
) -> None:
    loader = build(workers=workers)
    list(loader)
    assert not loader.report().notes
    with pytest.warns(OffloadWarning, match=r"call iter\(loader\) instead"):
        batches = of_torch(loader)
    assert sum(len(labels) for _, labels in batches) == FILES
    assert any("iter(loader)" in note for note in loader.report().notes)


def test_what_nobody_passes_by_says_nothing(build: Callable[..., Any]) -> None:
    plain, ours = build(agent=None, dataset=torch.arange(8.0)), build()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OffloadWarning)
        assert len(_SingleProcessDataLoaderIter(plain)) == len(plain) == 2
        assert list(ours._index_sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert len(ours) == 2 and ours._auto_collation and ours._iterator is None and len(list(ours)) == 2
