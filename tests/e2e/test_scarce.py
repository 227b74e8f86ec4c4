"""A loader under a low limit of open files: whole where torch's is, and else an error, never a wait."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.warm import run_forked

SCRIPT = """
import resource, sys, warnings
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
warnings.simplefilter("ignore")
import torch
from sophon_loader import OffloadingDataLoader
from sophon_loader.datasets.files import FileDataset
from torchvision import transforms as T

keys = ["0.png"] * 120
labels = [{f"k{n}": n for n in range(int(sys.argv[3]))}] * 120
dataset = FileDataset(sys.argv[4], keys, labels, T.Compose([T.CenterCrop(64), T.ToTensor()]))
batches = iter(OffloadingDataLoader(dataset, batch_size=1, num_workers=int(sys.argv[2])))
done = 0
for again in range(4):
    try:
        done += sum(1 for _ in batches)
        break
    except (RuntimeError, OSError) as error:
        print("error", " ".join(str(error).split()))
print("batches", done)
"""


def said(root: Path, files: int, workers: int, labels: int) -> str:
    from PIL import Image

    Image.new("RGB", (80, 80)).save(root / "0.png")
    arguments = [str(files), str(workers), str(labels), str(root)]
    command = [sys.executable, "-c", SCRIPT, *arguments]
    return run_forked(command, timeout=120).stdout


def test_few_descriptors_are_enough(tmp_path: Path) -> None:
    assert said(tmp_path, 64, workers=2, labels=2).splitlines() == ["batches 120"]


def test_too_few_are_an_error_that_names_the_limit(tmp_path: Path) -> None:
    text = said(tmp_path, 48, workers=2, labels=60)
    assert "error" in text and "ulimit -n" in text and "batches" in text
