"""What one sample must not cost the others: it goes as its file, and they stay offloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import Agent, agent_for
from tests.support.loaders import MakeLoader
from tests.support.pictures import eval_transform, folder, picture

FILES = 20
LOADER: dict[str, Any] = {"batch_size": 4, "seed": 3}


@pytest.fixture(scope="module")
def agent(root: Path) -> Iterator[Agent]:
    """It has one picture that is too large for it, and one that it cannot read."""
    picture(500, 400, 3).save(root / "class_0" / "large.jpg")
    there = root.parent / "there"
    shutil.copytree(root, there)
    unreadable = sorted((there / "class_3").iterdir())[1]
    unreadable.unlink()
    unreadable.mkdir()
    with agent_for(there, "--max-megapixels", "0.1") as running:
        yield running


@pytest.mark.filterwarnings("ignore::sophon_loader.OffloadWarning")
@pytest.mark.parametrize("policy", ["all-off", "resize-off"])
def test_samples_that_the_agent_cannot_make_go_as_files_alone(
    root: Path, agent: Agent, make: MakeLoader, policy: str
) -> None:
    loader = make(folder(root, eval_transform()), policy=policy)
    for epoch in range(3):
        for _ in loader:
            pass
        report = loader.report().as_dict()
        assert report["choices"]["file"] == 2, (epoch, report["choices"])
        assert (report["samples"], report["degraded"], report["fallbacks"]) == (FILES + 1, 1, 1)
