"""A loop that catches what `next()` raises and goes on: it sees what it would see of torch's loader, and ends."""

from __future__ import annotations

import gc
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import transforms as v1

from sophon_loader import ConfigError, OffloadingDataLoader
from tests.support.alarms import Interrupted, interruptible, raise_within
from tests.support.loaders import LOCAL

FILES, BATCH = 16, 2
LIMIT = 50
"""Errors after which a loop is taken for one without end."""
WORKERS: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
}
Make = Callable[..., DataLoader[Any]]


class TooLate(Exception):
    """What the handler of a signal raises."""


class Plain(Dataset[Any]):
    """The same samples, of a class that nobody knows."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> Any:
        return self.of[index]


def labels(batch: Any) -> list[int]:
    return [round(float(one[0, 0, 0])) for one in batch[0]]


def seen(batches: Any) -> list[Any]:
    """What a loop sees that goes on after an error: the labels of batches, and the classes of errors."""
    found: list[Any] = []
    while sum(isinstance(one, str) for one in found) < LIMIT:
        try:
            found.append(labels(next(batches)))
        except StopIteration:
            return found
        except (Exception, KeyboardInterrupt) as error:
            found.append(type(error).__name__)
    return [*found, "without end"]


class Numbered:
    """An op that makes of the n-th picture, whose width is 64 + n, an image of n; at some it does something first."""

    def __init__(self, at: int, do: Callable[[], object]) -> None:
        self.at, self.do = at, do

    def __call__(self, image: Any) -> torch.Tensor:
        if image.width == 64 + self.at:
            self.do()
        return torch.full((1, 2, 2), float(image.width - 64))


@pytest.fixture
def pictures(tmp_path: Path) -> Callable[..., Any]:
    from PIL import Image
    from torchvision.datasets import ImageFolder

    (tmp_path / "a").mkdir()
    for n in range(FILES):
        Image.new("RGB", (64 + n, 8), n).save(tmp_path / f"a/{n:02}.png")

    def make(at: int = -1, do: Callable[[], object] = bool, *, plain: bool = False) -> Any:
        dataset = ImageFolder(str(tmp_path), v1.Compose([Numbered(at, do)]))
        return Plain(dataset) if plain else dataset

    return make


@pytest.fixture
def alarmed() -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TooLate

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def die() -> None:
    time.sleep(0.5)  # what was made before has been sent
    os._exit(9)


def bad() -> None:
    raise ValueError("bad")


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("workers", ["workers", "persistent"])
def test_a_worker_that_died_is_one_error(pictures: Any, workers: str, plain: bool) -> None:
    def run(make: Make) -> list[Any]:
        return seen(iter(make(pictures(6, die, plain=plain), BATCH, **WORKERS[workers])))

    expected, found = run(DataLoader), run(OffloadingDataLoader)
    assert found.count("RuntimeError") == 1 and [6, 7] not in found and found[-1] != "RuntimeError"
    assert [one for one in found if one != "RuntimeError"] == [one for one in expected if one != "RuntimeError"]


class Slow:
    """A step that takes a while once, in this process or in a worker."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> None:
        time.sleep(self.seconds)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shape", WORKERS)
def test_a_signal_of_the_user_s_costs_what_it_costs_there(
    pictures: Any, alarmed: None, shape: str, plain: bool
) -> None:
    def run(make: Make) -> tuple[list[Any], Any]:
        loader = make(pictures(4, Slow(0.8), plain=plain), BATCH, **WORKERS[shape])
        batches = iter(loader)
        first = [labels(next(batches)) for _ in range(2)]
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return first + seen(batches), loader

    expected, _ = run(DataLoader)
    found, loader = run(OffloadingDataLoader)
    assert found == expected
    assert ("TooLate" in found) and (shape == "alone" or [4, 5] in found)
    assert len(seen(iter(loader))) == FILES // BATCH


@pytest.mark.parametrize("plain", [False, True])
def test_a_loop_left_behind_a_signal_ends_its_workers_at_once(pictures: Any, alarmed: None, plain: bool) -> None:
    others = active_children()  # of tests before, until Python collects them
    gc.disable()
    try:
        batches = iter(OffloadingDataLoader(pictures(2, Slow(0.4), plain=plain), BATCH, num_workers=1))
        next(batches)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with suppress(TooLate):
            next(batches)
            pytest.fail("the signal must come as a batch is waited for")
        (worker,) = [one for one in active_children() if one not in others]
        del batches
        assert not worker.is_alive()
    finally:
        gc.enable()


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shape", WORKERS)
@pytest.mark.parametrize("handler", ["alarm", "interrupt"])
def test_a_state_taken_behind_a_signal_goes_on_there(
    pictures: Any, alarmed: None, shape: str, plain: bool, handler: str
) -> None:
    if handler == "interrupt":
        signal.signal(signal.SIGALRM, signal.default_int_handler)
    loader = OffloadingDataLoader(pictures(4, Slow(0.8), plain=plain), BATCH, **WORKERS[shape])
    batches = iter(loader)
    next(batches), next(batches)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises((TooLate, KeyboardInterrupt)):
        next(batches)
    next(batches)
    state = loader.state_dict()
    rest = seen(batches)
    again = OffloadingDataLoader(pictures(plain=plain), BATCH, **WORKERS[shape])
    again.load_state_dict(state)
    assert seen(iter(again)) == rest


@pytest.mark.filterwarnings("ignore:No op but decoding can run at the agent")
@pytest.mark.parametrize("agent", [None, LOCAL])
def test_with_an_agent_too(pictures: Any, alarmed: None, agent: Any) -> None:
    loader = OffloadingDataLoader(pictures(4, Slow(0.8)), BATCH, agent=agent, policy="all-off")
    batches = iter(loader)
    first = [labels(next(batches)) for _ in range(2)]
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    found = first + seen(batches)
    assert found == [[0, 1], [2, 3], "TooLate", *([n, n + 1] for n in range(6, FILES, 2))]
    loader.close()


class Unreadable:
    """A batch that cannot be made again in another process."""

    def __reduce__(self) -> Any:
        return _unreadable, ()


def _unreadable() -> None:
    raise LookupError("unreadable")


def some_unreadable(samples: list[Any]) -> Any:
    return Unreadable() if samples[0][0][0, 0, 0] == 4 else default_collate(samples)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shape", ["workers", "persistent"])
def test_a_batch_that_cannot_be_read_is_one_error(pictures: Any, shape: str, plain: bool) -> None:
    loader = OffloadingDataLoader(pictures(plain=plain), BATCH, collate_fn=some_unreadable, **WORKERS[shape])
    for _ in range(2):
        found = seen(iter(loader))
        assert found.count("LookupError") == 1
        assert [one for one in found if isinstance(one, list)] == [[n, n + 1] for n in range(0, FILES, 2) if n != 4]


@pytest.mark.parametrize("shape", WORKERS)
def test_an_error_of_the_dataset_is_that_batch_s(pictures: Any, shape: str) -> None:
    found = [seen(iter(make(pictures(4, bad), BATCH, **WORKERS[shape]))) for make in (DataLoader, OffloadingDataLoader)]
    assert found[0] == found[1] and found[1].count("ValueError") == 1


def collate_or_fail(samples: list[Any]) -> Any:
    return bad() if samples[0][0][0, 0, 0] == 4 else default_collate(samples)


@pytest.mark.parametrize("shape", WORKERS)
def test_an_error_of_the_collate_fn_is_that_batch_s(pictures: Any, shape: str) -> None:
    arguments = {**WORKERS[shape], "collate_fn": collate_or_fail}
    found = [seen(iter(make(pictures(), BATCH, **arguments))) for make in (DataLoader, OffloadingDataLoader)]
    assert found[0] == found[1] and found[1].count("ValueError") == 1


def test_a_timeout_of_the_loader_s_costs_no_batch(pictures: Any) -> None:
    found = [
        seen(iter(make(pictures(4, Slow(2.5)), BATCH, num_workers=1, timeout=1)))
        for make in (DataLoader, OffloadingDataLoader)
    ]
    assert "RuntimeError" in found[1] and [4, 5] in found[1]
    assert [one for one in found[0] if one != "RuntimeError"] == [one for one in found[1] if one != "RuntimeError"]


class Unpicklable:
    """What no other process gets."""

    def __getstate__(self) -> Any:
        raise ValueError("no pickle")


def object_in(batch: Any) -> Any:
    return {"images": batch, "more": [1, Unpicklable()]}


def graph_in(batch: Any) -> Any:
    return [torch.ones(2, requires_grad=True) * 2, *batch]


def of_a_class_in_a_function(batch: Any) -> Any:
    class Local(Exception):
        pass

    raise Local("said so")


UNPICKLABLE = {
    "object": (object_in, "ConfigError", "got a Unpicklable in it .ValueError: no pickle.;.* num_workers=0"),
    "graph": (graph_in, "ConfigError", "got a Tensor in it"),
    "error": (of_a_class_in_a_function, "RuntimeError", "said so"),
}


class SomeFail:
    """A `collate_fn` that makes one batch such."""

    def __init__(self, what: Callable[[Any], Any]) -> None:
        self.what = what

    def __call__(self, samples: list[Any]) -> Any:
        batch = default_collate(samples)
        return self.what(batch) if samples[0][0][0, 0, 0] == 4 else batch


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("what", UNPICKLABLE)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_batch_that_cannot_be_pickled_is_one_error(pictures: Any, what: str, plain: bool, method: str) -> None:
    make, name, text = UNPICKLABLE[what]
    loader = OffloadingDataLoader(
        pictures(plain=plain),
        BATCH,
        collate_fn=SomeFail(make),
        num_workers=2,
        timeout=20,
        multiprocessing_context=method,
    )
    found = seen(iter(loader))
    assert found == [name if n == 4 else [n, n + 1] for n in range(0, FILES, 2)]
    with pytest.raises((ConfigError, RuntimeError), match=f"(?s){text}"):
        list(loader)


# --- a handler that raises at any moment ------------------------------------------------------------------------------

EPOCHS = 12


def drawn_epoch(batches: Any, draw: random.Random, most_s: float) -> tuple[list[int], int]:
    """What comes while signals come at random moments, and how often `next()` was left by one."""
    came: list[int] = []
    left = 0
    while True:
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, most_s))
            came += labels(interruptible(next, batches))
        except Interrupted:
            left += 1
        except StopIteration:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return came, left


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file may be left open
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_no_epoch_ends_by_a_signal_at_any_moment(pictures: Any, alarmed: None, shuffle: bool, plain: bool) -> None:
    """Without workers each signal costs the batch that was being made, at most."""
    signal.signal(signal.SIGALRM, raise_within)
    draw = random.Random(0)
    loader = OffloadingDataLoader(pictures(plain=plain), BATCH, shuffle=shuffle)
    list(loader)  # what is seen once in a process
    signals = 0
    for _ in range(EPOCHS):
        came, left = drawn_epoch(iter(loader), draw, 3e-3)
        assert len(set(came)) == len(came) >= FILES - BATCH * left
        assert loader.state_dict()["samples"] == 0  # of the next epoch
        signals += left
    assert signals
    assert sorted(drawn_epoch(iter(loader), draw, 60.0)[0]) == list(range(FILES))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file may be left open
def test_a_state_behind_signals_at_any_moment_goes_on_there(pictures: Any, alarmed: None) -> None:
    signal.signal(signal.SIGALRM, raise_within)
    draw = random.Random(0)
    for seed in range(EPOCHS):
        torch.manual_seed(seed)
        loader = OffloadingDataLoader(pictures(), BATCH, shuffle=True)
        batches, number = iter(loader), 0
        while number < FILES // BATCH // 2:
            number += 1
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 3e-3))
            with suppress(Interrupted):
                interruptible(next, batches)
        signal.setitimer(signal.ITIMER_REAL, 0)
        next(batches)
        state, rest = loader.state_dict(), seen(batches)
        again = OffloadingDataLoader(pictures(), BATCH, shuffle=True)
        again.load_state_dict(state)
        assert seen(iter(again)) == rest


def without_tensors(samples: list[Any]) -> Any:
    """Arrays: a tensor comes by a socket, which a signal may leave open, and its worker waiting."""
    return [[sample[0].numpy() for sample in samples]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file may be left open
@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
def test_no_epoch_with_workers_ends_by_a_signal_at_any_moment(
    pictures: Any, alarmed: None, in_order: bool, plain: bool
) -> None:
    """Each signal costs a batch at most: the one that was being received."""
    signal.signal(signal.SIGALRM, raise_within)
    draw = random.Random(0)
    arguments: dict[str, Any] = {**WORKERS["persistent"], "in_order": in_order, "collate_fn": without_tensors}
    loader = OffloadingDataLoader(pictures(plain=plain), 1, shuffle=True, **arguments)
    list(loader)  # what is seen once in a process, and the start of the workers
    signals = 0
    for _ in range(EPOCHS):
        came, left = drawn_epoch(iter(loader), draw, 1e-3)
        assert len(set(came)) == len(came) >= FILES - left
        assert loader.state_dict()["samples"] == 0  # of the next epoch
        signals += left
    assert signals
    assert sorted(drawn_epoch(iter(loader), draw, 60.0)[0]) == list(range(FILES))
