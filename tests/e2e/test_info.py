"""Ops of the user's that look at a picture's metadata: what torch's DataLoader gives, wherever they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms as v1

from sophon_loader import OffloadingDataLoader
from tests.support.agent_ops import Upright
from tests.support.agents import EXPORT, Agent, agent_for
from tests.support.loaders import QUICK
from tests.support.pictures import folder

TURNED = 6
"""EXIF's word for a picture that must be turned by 90 degrees."""
PIPELINES = {
    "first": [Upright(), v1.Resize((32, 24)), v1.ToTensor()],
    "behind a crop": [v1.CenterCrop(40), Upright(), v1.ToTensor()],
    "in a container": [v1.CenterCrop(40), v1.RandomApply([Upright()], p=1.0), v1.ToTensor()],
    "behind a function": [v1.CenterCrop(40), Image.Image.copy, Upright(), v1.ToTensor()],
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that all lie on their side."""
    root = tmp_path_factory.mktemp("all") / "pictures"
    (root / "a").mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = TURNED
    numbers = np.random.default_rng(1)
    for n in range(4):
        small = Image.fromarray(numbers.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        small.resize((240, 180)).save(root / "a" / f"{n}.jpg", exif=exif.tobytes())
    return root


@pytest.fixture(scope="module", params=["with the op", "without it"])
def server(request: pytest.FixtureRequest, root: Path) -> Iterator[Agent]:
    ops = ("--ops", "tests.support.agent_ops") if request.param == "with the op" else ()
    with agent_for({EXPORT: root}, *ops) as running:
        yield running


def torchs(root: Path, name: str) -> Any:
    return torch.cat([images for images, _ in DataLoader(folder(root, v1.Compose(PIPELINES[name])))])


def ours(root: Path, name: str, agent: str | None, policy: str) -> tuple[Any, tuple[str, ...]]:
    loader = OffloadingDataLoader(folder(root, v1.Compose(PIPELINES[name])), agent=agent, policy=policy, options=QUICK)
    try:
        found = [[images for images, _ in loader] for _ in range(2)]
        return torch.cat(found[1]), loader.report().notes
    finally:
        loader.close()


@pytest.mark.parametrize("name", PIPELINES)
def test_without_an_agent(root: Path, name: str) -> None:
    found, notes = ours(root, name, None, "auto")
    assert torch.equal(found, torchs(root, name))
    told = [note for note in notes if "register_op(..., reads_info=False)" in note]
    assert bool(told) == (name != "behind a function"), "a function may look at metadata as well, whatever this op does"


@pytest.mark.parametrize("policy", ["no-off", "all-off", "resize-off", "auto", "sophon"])
@pytest.mark.parametrize("name", ["first", "behind a crop"])
def test_under_every_policy(root: Path, server: Agent, name: str, policy: str) -> None:
    found, _ = ours(root, name, server.address(), policy)
    assert torch.equal(found, torchs(root, name))


@pytest.mark.parametrize("name", ["in a container", "behind a function"])
def test_wherever_it_stands(root: Path, server: Agent, name: str) -> None:
    found, _ = ours(root, name, server.address(), "all-off")
    assert torch.equal(found, torchs(root, name))
