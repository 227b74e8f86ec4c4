"""Programs as people write them: a notebook's cells, a compiled training step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sophon_loader import OffloadingDataLoader
from tests.support.agents import ROOT
from tests.support.loaders import MakeLoader, digest_of, samples_of

FILES = 8
LOADER = {"batch_size": 4, "policy": "all-off", "seed": 3}
CELLS = """
from torchvision.datasets import ImageFolder
from sophon_loader import OffloadingDataLoader
from tests.support.loaders import samples_of
from tests.support.pictures import train_transform
import sys
loader = OffloadingDataLoader(
    ImageFolder(sys.argv[1], train_transform()), 4, num_workers=1, multiprocessing_context="spawn", agent=sys.argv[2],
    policy="all-off", seed=3,
)
print(samples_of(loader))
"""


def test_cells_of_a_notebook_start_workers_by_spawn(root: Path, make: MakeLoader) -> None:
    """There is no file to import in a worker, as in a notebook's kernel."""
    loader = make()
    command = [sys.executable, "-c", CELLS, str(root), str(loader.agent)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(samples_of(loader))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_compiled_step_gets_the_same_batches(make: MakeLoader, workers: int) -> None:
    def step(images: torch.Tensor) -> torch.Tensor:
        return (images * 2).sum()

    loader: OffloadingDataLoader[object] = make(num_workers=workers)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    expected = [(digest_of(images), float(step(images))) for images, _ in make()]
    assert [(digest_of(images), float(compiled(images))) for images, _ in loader] == expected
    assert loader.measure(lambda batch: compiled(batch[0])).as_dict()["samples"] == FILES
