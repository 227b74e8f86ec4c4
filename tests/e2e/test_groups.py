"""Agents of several racks or rails: a rank's bytes come from its own group as long as that keeps up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sophon_loader import OffloadingDataLoader
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import samples_of
from tests.support.pictures import folder
from tests.support.replicas import LOADER, PATIENT

REPEATS = 20
OWN, OTHER = "rail-0 from rail-0", "rail-0 from rail-1"


@contextmanager
def rails_of(root: Path, *megabits: int) -> Iterator[list[Agent]]:
    with ExitStack() as stack:
        yield [stack.enter_context(agent_for({EXPORT: root}, "--limit-mbit", str(one))) for one in megabits]


@pytest.fixture
def rails(root: Path) -> Iterator[list[Agent]]:
    with rails_of(root, 8, 8) as both:
        yield both


def loader_of(root: Path, rails: list[Agent], **arguments: Any) -> OffloadingDataLoader[Any]:
    groups = {f"rail-{number}": [one.endpoint] for number, one in enumerate(rails)}
    dataset = folder(root)
    return OffloadingDataLoader(
        dataset,
        agent=[one.address() for one in rails],
        sampler=[number % len(dataset) for number in range(REPEATS * len(dataset))],
        policy="no-off",
        num_workers=1,
        options=replace(PATIENT, group="rail-0", groups=groups),
        **LOADER,
    )


def bytes_of(loader: Any) -> dict[str, int]:
    found: dict[str, int] = loader.report().as_dict()["group_bytes"]
    return found


def test_traffic_stays_in_the_group_while_training_is_slower(root: Path, rails: list[Agent]) -> None:
    loader = loader_of(root, rails)
    try:
        for number, _ in enumerate(loader):
            time.sleep(0.03)
            if number == 200:
                break
        found = bytes_of(loader)
        assert found[OWN] > 10 * found[OTHER], found
        assert "rail-0 from rail-0: " in str(loader.report())
        agents = loader.report().as_dict()["agents"]
        assert [one["group"] for one in agents] == ["rail-0", "rail-1"]
        assert agents[0]["wire_bytes"] > 10 * agents[1]["wire_bytes"]
    finally:
        loader.close()


def test_traffic_leaves_the_group_where_it_does_not_keep_up(root: Path) -> None:
    # The own one is slow enough that it is behind a loop on a busy machine as well.
    with rails_of(root, 2, 8) as rails:
        loader = loader_of(root, rails)
        try:
            for number, _ in enumerate(loader):
                if number == 200:
                    before = bytes_of(loader)
            found = {pair: nbytes - before[pair] for pair, nbytes in bytes_of(loader).items()}
            assert found[OTHER] > 0.6 * found[OWN], found
        finally:
            loader.close()


def test_the_other_group_does_it_all_once_the_own_has_gone(root: Path, rails: list[Agent]) -> None:
    loader = loader_of(root, rails)
    try:
        count = 0
        for number, batch in enumerate(loader):
            if number == 40:
                rails[0].kill()
            count += len(samples_of([batch]))
        assert count == REPEATS * len(folder(root))
        assert loader.report().as_dict()["fallbacks"] == 0 and bytes_of(loader)[OTHER] > bytes_of(loader)[OWN]
    finally:
        loader.close()
