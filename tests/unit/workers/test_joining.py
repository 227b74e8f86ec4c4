"""Terms that are agreed on while the workers run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset
from torchvision.datasets import ImageFolder

from sophon_loader.client.address import Address
from sophon_loader.client.session import Terms
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.fleet.shared_route import Agreed, SharedRoute
from sophon_loader.workers.dataset import OffloadedDataset
from tests.support.pictures import make_tree
from tests.support.profiles import crop_transform
from tests.support.workers import parts_of
from tests.unit.workers.test_choosing import terms
from tests.unit.workers.test_dataset import SessionStandIn, ticket


class Silent(SessionStandIn):
    """Has counted nothing."""

    fresh = 0
    net_s = queued_s = 0.0
    shortest_net_s = math.inf


def proposed(sources: int = 1) -> Terms:
    """What is known before the agent has answered."""
    return replace(
        terms(),
        address=Address("", "photos"),
        instance="",
        allowed=(),
        registrations=(b"",) * sources,
        keep_info=(False,) * sources,
        files_here=True,
    )


@pytest.mark.parametrize("sources", [1, 2])
def test_a_worker_follows_them_from_its_next_batch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: int
) -> None:
    folder = ImageFolder(str(make_tree(tmp_path / "tree", 6, classes=2, sides=(24, 32), plain=True)), crop_transform())
    parts = parts_of(folder if sources == 1 else ConcatDataset([folder] * sources), reach=(0,) * sources)
    sessions: list[Terms] = []

    def session(agreed: Terms) -> Any:
        sessions.append(agreed)
        return Silent()

    monkeypatch.setattr("sophon_loader.fleet.worker_fleet.Session", session)
    early = proposed(sources)
    route = SharedRoute(1, early)
    dataset = OffloadedDataset(
        parts.data,
        parts.steps,
        parts.plan,
        parts.statistics,
        parts.profile,
        [route],
        parts.seed,
    )
    before = dataset.__getitems__(ticket(0, 3, 0))
    totals = parts.statistics.totals(1)
    assert (totals.samples, totals.fallbacks, sessions) == (2, 0, [])
    agreed = replace(early, address=Address("tcp://127.0.0.1:7", "photos"), instance="i", allowed=encoding_names())
    route.agree(Agreed(agreed, (4,) * sources))
    after = dataset.__getitems__(ticket(0, 3, 0))
    assert sessions == [agreed]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(before, after, strict=True))
    dataset.__getitems__(ticket(1, 1))
    assert len(sessions) == 1, "a connection per process, not per batch"
    assert {one.reach for one in dataset.chooser._steps} == {4}
