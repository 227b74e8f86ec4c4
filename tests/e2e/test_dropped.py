"""A loader that nobody refers to any more: its workers and its agent end at once, without a garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.run import workforce as module
from sophon_loader.run.changing_workers import Relay
from sophon_loader.run.workforce import Workforce
from tests.support.agents import EXPORT, Agent
from tests.support.held import nothing_more_held
from tests.support.loaders import LOCAL, MakeLoader, samples_of
from tests.support.pictures import folder

FILES = 16
NUMBERS = TensorDataset(torch.arange(FILES))
SHAPES: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "auto": {"num_workers": "auto"},
    "as made": {"num_workers": 2, "in_order": False},
    "prefetch": {"num_workers": 1, "device_prefetch": 2},
    "plain": {"num_workers": 1, "dataset": NUMBERS, "persistent_workers": True},
    "plain prefetch": {"num_workers": 1, "dataset": NUMBERS, "device_prefetch": 1},
}


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """No garbage collection but what a test asks for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def children() -> set[int]:
    """Processes that this one has started and that live."""
    return {one.pid for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE}


def nothing(loader: Any) -> None:
    """Before any iteration."""


def whole(loader: Any) -> None:
    """An epoch."""
    for _ in loader:
        pass


def middle(loader: Any) -> None:
    """An iterator that is dropped with the loader, in mid-epoch."""
    next(iter(loader))


def nothing_is_left(root: Path, use: Callable[[Any], None], dataset: Any = None, **arguments: Any) -> None:
    before = children()
    loader = OffloadingDataLoader(dataset or folder(root), batch_size=4, **arguments)
    use(loader)
    known = weakref.ref(loader)
    del loader
    assert known() is None
    assert children() <= before


@pytest.mark.parametrize("use", [nothing, whole, middle])
@pytest.mark.parametrize("shape", SHAPES)
def test_its_workers_end(root: Path, shape: str, use: Callable[[Any], None]) -> None:
    nothing_is_left(root, use, **SHAPES[shape])


@pytest.mark.parametrize("use", [whole, middle])
@pytest.mark.parametrize(("shape", "remote"), [("workers", False), ("workers", True), ("prefetch", True)])
def test_an_epoch_that_is_over_holds_no_descriptor(
    root: Path, make: MakeLoader, shape: str, use: Callable[[Any], None], remote: bool
) -> None:
    loader = make(agent="" if remote else None, batch_size=4, **SHAPES[shape])
    use(loader)
    with nothing_more_held(spare_descriptors=9):  # some pipes of workers that have just ended
        for _ in range(20):
            use(loader)


@pytest.mark.parametrize("use", [whole, middle])
@pytest.mark.parametrize("shape", ["alone", "persistent", "prefetch"])
def test_its_cache_is_closed(root: Path, tmp_path: Path, shape: str, use: Callable[[Any], None]) -> None:
    options = OffloadOptions(cache=str(tmp_path), cache_gb=0.1)
    nothing_is_left(root, use, options=options, **SHAPES[shape])
    with nothing_more_held(spare_descriptors=3):  # one segment's and the count's; a loader opens 17
        nothing_is_left(root, use, options=options, **SHAPES[shape])


@pytest.mark.parametrize("workers", [0, 1])
def test_it_lets_go_of_several_agents(root: Path, agent: Agent, workers: int) -> None:
    known = weakref.ref(data := folder(root))
    other = f"tcp://localhost:{agent.endpoint.rpartition(':')[2]}/{EXPORT}"
    nothing_is_left(root, whole, data, agent=[agent.address(), other], policy="all-off", num_workers=workers)
    del data
    assert known() is None


@pytest.mark.parametrize("use", [whole, middle])
@pytest.mark.parametrize("shape", SHAPES)
def test_its_dataset_goes_with_it(root: Path, shape: str, use: Callable[[Any], None]) -> None:
    arguments = {"dataset": folder(root), **SHAPES[shape]}
    if arguments["dataset"] is NUMBERS:
        arguments["dataset"] = TensorDataset(torch.arange(FILES))
    known = weakref.ref(arguments["dataset"])
    loader = OffloadingDataLoader(batch_size=4, shuffle=True, **arguments)
    use(loader)
    del loader, arguments
    assert known() is None


def test_its_agent_ends(root: Path) -> None:
    nothing_is_left(root, middle, agent=LOCAL, policy="all-off", num_workers=1)


def bad(image: torch.Tensor) -> torch.Tensor:
    """An op that fails."""
    raise ValueError("bad")


def caught(loader: Any) -> None:
    """An epoch whose error the user catches."""
    with pytest.raises(ValueError, match="bad"):
        whole(loader)


@pytest.mark.parametrize("shape", ["alone", "workers", "persistent", "prefetch"])
def test_they_end_after_an_error(root: Path, shape: str) -> None:
    nothing_is_left(root, caught, folder(root, v1.Compose([v1.ToTensor(), bad])), **SHAPES[shape])


def test_an_iterator_whose_loader_was_dropped_still_changes_workers(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = samples_of(OffloadingDataLoader(folder(root), batch_size=2, seed=1))

    def decide(self: Workforce) -> int:
        self.number, self._shift = 3 - self.number, module.Shift()
        return self.number

    monkeypatch.setattr(Workforce, "is_due", property(lambda self: self._shift.batches >= 2))
    monkeypatch.setattr(Workforce, "decide", decide)
    monkeypatch.setattr(Relay, "_worth_it", lambda self: True)
    monkeypatch.setattr(module, "own_cores", lambda cores: 4.0)
    batches = iter(OffloadingDataLoader(folder(root), batch_size=2, seed=1, num_workers="auto"))
    assert samples_of(batches) == expected


class Collecting(Dataset[int]):
    """A dataset whose workers look for garbage."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return gc.collect() * 0 + index


@pytest.mark.parametrize("dataset", [None, NUMBERS])
def test_workers_leave_alone_what_they_inherit(root: Path, dataset: Any, capfd: pytest.CaptureFixture[str]) -> None:
    loader = OffloadingDataLoader(dataset or folder(root), num_workers=1)
    circle: list[Any] = [loader, iter(loader)]
    circle.append(circle)
    del loader, circle  # garbage of a user's own
    assert [int(one) for one in OffloadingDataLoader(Collecting(), num_workers=1)] == [0, 1]
    assert "can only test a child process" not in capfd.readouterr().err
