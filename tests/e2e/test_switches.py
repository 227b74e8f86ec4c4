"""torch's settings that change numbers: the same tensors with and without the agent, and a note that names each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import transforms as v1

from sophon_loader import OffloadOptions
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder

FILES = 12
LOADER = {"batch_size": 4, "seed": 1, "policy": "all-off"}
FAINT = v1.Normalize([0.0] * 3, [3e38] * 3)
"""Makes numbers so small that torch may be told to take them for 0."""


def pictures(root: Path, *more: Any) -> Any:
    return folder(root, v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), FAINT, *more]))


UNCHECKED = replace(QUICK, verify=0.0)
"""Options under which no sample is computed twice, so that one that differs is not noticed by that."""


@pytest.fixture(autouse=True)
def _as_usual() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)


def flush(worker: int = 0) -> None:
    torch.set_flush_denormal(True)


def double(worker: int = 0) -> None:
    torch.set_default_dtype(torch.float64)


class FlushesFrom:
    """A label's transform that changes a setting of its process when it is called for the n-th time."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self, target: int) -> int:
        self.left -= 1
        if not self.left:
            flush()
        return target


@pytest.fixture
def expected(root: Path, make: Callable[..., Any]) -> Any:
    """Without an agent: with the usual settings, and without small numbers."""
    usual = samples_of(make(pictures(root), None))
    flush()
    flushed = samples_of(make(pictures(root), None))
    torch.set_flush_denormal(False)
    assert usual != flushed, "it does change them"
    return usual, flushed


def note_of(loader: Any) -> str:
    return " ".join(note for note in loader.report().notes if note.startswith("no op of torch runs at the agent"))


@pytest.mark.parametrize(("workers", "policy"), [(0, "all-off"), (1, "all-off"), (1, "auto")])
def test_a_setting_that_the_agent_does_not_have(
    root: Path, make: Callable[..., Any], expected: Any, workers: int, policy: str
) -> None:
    flush()
    loader = make(pictures(root), num_workers=workers, policy=policy)
    assert samples_of(loader) == expected[1]
    assert note_of(loader).endswith(
        "numbers could differ: flush denormal is on here and off there (remedy: torch.set_flush_denormal(False))"
    )
    cuts = loader.report().as_dict()["cuts"]
    assert set(cuts) <= {0, 1, 2} and (policy == "auto" or set(cuts) == {2}), "a crop of Pillow's may run there"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_setting_that_changes_between_epochs(
    root: Path, make: Callable[..., Any], expected: Any, workers: int
) -> None:
    loader = make(pictures(root), num_workers=workers)
    usual, flushed = expected
    for turned, samples, cut in ((False, usual, 4), (True, flushed, 2), (False, usual, 4)):
        torch.set_flush_denormal(turned)
        loader.set_epoch(0)
        assert samples_of(loader) == samples
        assert set(loader.report().as_dict()["cuts"]) == {cut} and bool(note_of(loader)) is turned


@pytest.mark.parametrize("policy", ["all-off", "auto"])
def test_a_setting_of_a_worker_alone(root: Path, make: Callable[..., Any], expected: Any, policy: str) -> None:
    loader = make(pictures(root), num_workers=1, policy=policy, worker_init_fn=flush, options=UNCHECKED)
    assert samples_of(loader) == expected[1]
    assert note_of(loader).endswith(
        "numbers could differ: flush denormal is on in a worker and off in the main process (remedy: "
        "torch.set_flush_denormal(False))"
    )


@pytest.mark.parametrize("policy", ["all-off", "auto"])
@pytest.mark.parametrize("options", [QUICK, UNCHECKED], ids=["verify", "unchecked"])
def test_a_default_dtype_of_a_worker_alone(
    root: Path, make: Callable[..., Any], policy: str, options: OffloadOptions
) -> None:
    given = {"num_workers": 1, "worker_init_fn": double}
    plain = make(pictures(root), None, **given)
    assert {images.dtype for images, _ in plain} == {torch.float64}
    plain.set_epoch(0)
    expected = samples_of(plain)
    loader = make(pictures(root), policy=policy, options=options, **given)
    for _ in range(2):
        loader.set_epoch(0)
        assert samples_of(loader) == expected
        assert set(loader.report().as_dict()["cuts"]) == {0}, "it draws other numbers, too"
        (note,) = [note for note in loader.report().notes if note.startswith("no op runs at the agent")]
        assert "default dtype is torch.float64 in a worker and torch.float32 in the main process" in note


def test_a_default_dtype_of_both(root: Path, make: Callable[..., Any]) -> None:
    """Agents have torch's own, so the numbers are drawn here, and the crops come from there."""
    double()
    given = {"num_workers": 1, "worker_init_fn": double}
    expected = samples_of(make(pictures(root), None, **given))
    loader = make(pictures(root), options=UNCHECKED, **given)
    assert samples_of(loader) == expected and set(loader.report().as_dict()["cuts"]) == {2}


def test_a_setting_of_an_earlier_epoch_is_not_told_again(root: Path, make: Callable[..., Any]) -> None:
    settings = iter([True, False])

    def turn(worker: int) -> None:
        torch.set_flush_denormal(turned)

    loader = make(pictures(root), num_workers=1, worker_init_fn=turn)
    for turned in settings:
        list(loader)
        assert bool(note_of(loader)) is turned
        assert set(loader.report().as_dict()["cuts"]) == {2 if turned else 4}


def test_a_setting_that_a_worker_changes_in_mid_epoch(root: Path, make: Callable[..., Any]) -> None:
    """It holds from the next batch on, whatever has been asked for ahead."""

    def dataset() -> Any:
        data = folder(root, v1.Compose([v1.CenterCrop(24), v1.ToTensor(), FAINT]))
        data.target_transform = FlushesFrom(call=4)  # the last of the first batch
        return data

    expected = samples_of(DataLoader(dataset(), 4, num_workers=1))
    assert samples_of(make(dataset(), None, num_workers=1)) == expected, "by the table"
    loader = make(dataset(), num_workers=1, prefetch_factor=3, options=UNCHECKED)
    assert samples_of(loader) == expected
    assert loader.report().as_dict()["cuts"] == {4: 4, 2: 8} and "flush denormal is on in a worker" in note_of(loader)


@pytest.mark.parametrize("given", [{"agent": None}, {"options": UNCHECKED}], ids=["none", "agent"])
def test_a_setting_that_the_training_loop_changes(root: Path, make: Callable[..., Any], given: dict[str, Any]) -> None:
    """Without workers it holds from the next batch on."""
    found = []
    dataset = folder(root, v1.Compose([v1.CenterCrop(24), v1.ToTensor(), FAINT]))
    for loader in (DataLoader(dataset, 4), make(dataset, **given)):
        torch.set_flush_denormal(False)
        found.append([])
        for batch in loader:
            found[-1] += samples_of([batch])
            flush()
    assert found[0] == found[1]


def test_a_setting_that_a_spawned_worker_does_not_have(root: Path, make: Callable[..., Any], expected: Any) -> None:
    """As in torch's DataLoader, it begins with the usual ones."""
    flush()
    for agent in ({}, {"agent": None}):
        loader = make(pictures(root), num_workers=1, multiprocessing_context="forkserver", **agent)
        assert samples_of(loader) == expected[0]


@pytest.mark.parametrize("given", [{}, {"agent": None}], ids=["agent", "none"])
def test_autocast_is_for_the_training_step(root: Path, make: Callable[..., Any], given: dict[str, Any]) -> None:
    size = 3 * 24 * 24
    mixed = v1.LinearTransformation(torch.full((size, size), 0.3), torch.zeros(size))
    dataset = folder(root, v1.Compose([v1.RandomResizedCrop(24), v1.ToTensor(), mixed]))
    found = []
    for context in (nullcontext(), torch.autocast("cpu", torch.bfloat16)):
        with context:
            found.append(samples_of(make(dataset, num_workers=0, **given)))
            assert torch.is_autocast_enabled("cpu") == isinstance(context, torch.autocast)
    assert found[0] == found[1]
