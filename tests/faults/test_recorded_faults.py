"""Datasets of classes of their own while an agent, or the way to it, fails: torch's batches, and each sample once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from sophon_loader.recording.opener import can_defer
from tests.e2e.test_other_agent import EARLIER, modules
from tests.support.agents import Agent, agent_for
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import picture
from tests.support.recorded import Copied, Forks, InBatches, InThreads, Later, Own, Unseen, left_unseen, seen_late
from tests.support.relay import SpoiltRelay

pytestmark = [
    pytest.mark.skipif(not can_defer(), reason="our C is not here"),
    pytest.mark.filterwarnings("ignore::sophon_loader.errors.OffloadWarning"),
]
FILES = 24
LOADER: dict[str, Any] = {"batch_size": 3, "shuffle": True}
SHORT = replace(QUICK, dead_after_s=0.6, resend_after_s=0.3)
Samples = list[tuple[str, Any]]


def seeded() -> None:
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(5)


def epochs(loader: Any, events: Mapping[int, Callable[[], Any]] | None = None, count: int = 1) -> Samples:
    """Samples of some epochs, of batches that are held while the others are made; an event comes behind its batch."""
    seeded()
    batches: list[Any] = []
    for _ in range(count):
        for batch in loader:
            batches.append(batch)
            (events or {}).get(len(batches), lambda: None)()
    return samples_of(batches)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)  # Pillow's open files
@pytest.mark.parametrize(
    ("kind", "collate", "workers"),
    [
        (Own, default_collate, 2),
        (InBatches, default_collate, 1),
        (InThreads, default_collate, 1),
        (Later, default_collate, 0),
        (Copied, default_collate, 1),
        (Forks, default_collate, 1),
        (Unseen, seen_late, 0),
        (Unseen, seen_late, 1),
        (Unseen, left_unseen, 2),
        (Unseen, left_unseen, 0),
    ],
)
def test_an_agent_that_goes(root: Path, agent: Agent, make: Any, kind: type[Own], collate: Any, workers: int) -> None:
    """What it has not sent by then is read here, whoever looks, and samples are made once."""
    count = 2 if kind is Own else 1
    more = {"num_workers": workers, "collate_fn": collate, "persistent_workers": count > 1}
    expected = epochs(DataLoader(kind(root), **LOADER, **more), count=count)
    with SpoiltRelay(agent.ready().endpoint) as relay:
        loader = make(kind(root), relay.address("pictures"), options=SHORT, **more)
        crossed: list[int] = []

        def goes() -> None:
            crossed.append(loader.report().as_dict()["wire_bytes"])
            relay.close()

        assert epochs(loader, {3: goes}, count) == expected
        assert crossed[0] > 0


@pytest.mark.parametrize("workers", [0, 1])
def test_messages_that_are_spoilt(root: Path, relay: SpoiltRelay, make: Any, workers: int) -> None:
    """Behind each batch others, in both directions: questions for headers, requests, and what answers them."""
    expected = epochs(DataLoader(Own(root), num_workers=workers, **LOADER), count=2)
    patient = replace(QUICK, dead_after_s=20.0, resend_after_s=0.3)
    loader = make(Own(root), relay.address("pictures"), num_workers=workers, options=patient)
    strikes: list[Any] = ["drop", "double", "flip", "reorder", "flip header", "truncate"]
    events = {at: partial(relay.strike, strikes[at % 6], 2, at % 4 > 1) for at in range(1, 16)}
    assert epochs(loader, events, count=2) == expected
    assert relay.struck >= 6 and loader.report().as_dict()["fallbacks"] < FILES / 2


@pytest.mark.parametrize("comes", ["an earlier release", "other files"])
def test_an_agent_in_the_place_of_another(root: Path, tmp_path: Path, make: Any, comes: str) -> None:
    """One that knows no programs, or one with other pictures under the same names, none of which is taken for them."""
    expected = epochs(DataLoader(Own(root), num_workers=1, persistent_workers=True, **LOADER), count=3)
    patient = replace(QUICK, dead_after_s=30.0, resend_after_s=20.0)
    with agent_for(root) as mortal:
        loader = make(Own(root), mortal.ready().address(), num_workers=1, persistent_workers=True, options=patient)

        def another() -> None:
            mortal.kill()
            if comes == "other files":
                mortal.exports = {"pictures": others(root, tmp_path / "pictures")}
            else:
                mortal.modules = modules(tmp_path, EARLIER)
            mortal.start()

        assert epochs(loader, {3: another}, count=3) == expected
        report = loader.report().as_dict()
    assert report["malformed"] == 0


def others(root: Path, there: Path) -> Path:
    """The same tree with other pictures."""
    for path in root.rglob("*.*"):
        (there / path.relative_to(root)).parent.mkdir(parents=True, exist_ok=True)
        picture(150, 140, len(path.name) + 7).save(there / path.relative_to(root))
    return there


def test_a_run_that_goes_on_without_the_agent(root: Path, agent: Agent, make: Any) -> None:
    """From the middle of an epoch, with the numbers of `seed=`, with and without workers."""
    alike = {"seed": 3, "options": replace(SHORT, connect_timeout_s=0.5)}
    expected = epochs(make(Own(root, moves=False), None, **alike))
    with SpoiltRelay(agent.ready().endpoint) as relay:
        first = make(Own(root, moves=False), relay.address("pictures"), num_workers=1, **alike)
        seeded()
        batches = iter(first)
        found = samples_of([next(batches) for _ in range(3)])
        state = first.state_dict()
        relay.close()
        found_after = samples_of(batches)
        second = make(Own(root, moves=False), relay.address("pictures"), **alike)
        second.load_state_dict(state)
        assert found + samples_of(second) == found + found_after == expected
