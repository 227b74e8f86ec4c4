"""Under torchrun: all ranks have rank 0's seed, and what one has begun others go on with, each index once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from sophon_loader import OffloadingDataLoader
from sophon_loader.errors import ConfigError
from sophon_loader.main import seeding
from tests.support.agents import ROOT
from tests.support.pictures import train_transform
from tests.support.ranks import BATCH, Indexed, seen, sharded

FILES = 26
PICTURES = FILES - 1
"""One of the files is a PNG, which `Indexed` leaves out."""


def run(ranks: int, root: Path, folder: Path) -> list[dict[str, Any]]:
    """What each rank has seen."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, "-m", "tests.support.ranks", str(root), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) == ranks, done.stdout + done.stderr
    return told


@pytest.mark.timeout(700)
def test_two_ranks_and_what_three_make_of_it(root: Path, tmp_path: Path) -> None:
    two = run(2, root, tmp_path)
    assert two[0]["seed"] == two[1]["seed"]
    dataset = Indexed(root, train_transform())
    alone = dict(seen(OffloadingDataLoader(dataset, 4, seed=two[0]["seed"])))
    assert len(alone) == PICTURES
    dealt = [one for told in two for one in told["dealt"]]
    assert {index for index, _ in dealt} == set(alone) and all(alone[index] == digest for index, digest in dealt)

    state = json.loads((tmp_path / "state.json").read_text())
    whole = sharded(root, seed=state["seed"])
    expected = seen(whole)
    begun = [one for told in two for one in told["sharded"]]
    assert len(begun) == 2 * 2 * BATCH == state["samples"]
    assert sorted(begun) == sorted(expected[: len(begun)])
    three = run(3, root, tmp_path)
    assert {told["steps"] for told in three} == {2}
    assert sorted(begun + [one for told in three for one in told["sharded"]]) == sorted(expected)
    here = sharded(root)
    here.load_state_dict(state)
    assert seen(here) == expected[len(begun) :]


def test_rank_0_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "rank_of_all", lambda: (1, 2))
    monkeypatch.setattr(seeding, "RANK_0_WAIT_S", 0.5)
    monkeypatch.setattr(distributed.distributed_c10d, "_get_default_store", distributed.HashStore)
    with pytest.raises(ConfigError, match=r"seed must be drawn by rank 0 within 0.5 s, got none .* give every rank"):
        seeding.drawn_seed(torch.Generator(), "Numbers of 3")
