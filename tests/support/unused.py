"""Programs with a loader that nobody iterates over: `python -m tests.support.unused KIND FOLDER AGENT`.

Each ends by itself; what it writes to its standard error last is looked at.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from sophon_loader import OffloadingDataLoader
from tests.support.pictures import eval_transform, folder

torch.set_num_threads(1)


def made(root: str, agent: str) -> Any:
    return OffloadingDataLoader(folder(Path(root), eval_transform()), 4, agent=agent, policy="resize-off", seed=3)


def fails(root: str, agent: str) -> None:
    """Before its first batch."""
    loader = made(root, agent)
    raise ValueError(f"no model for {len(loader)} batches")


def fails_and_exits(root: str, agent: str) -> None:
    """As programs under hydra do."""
    try:
        fails(root, agent)
    except ValueError as error:
        print(f"ValueError: {error}", file=sys.stderr)
        sys.exit(1)


def goes_unused(root: str, agent: str) -> None:
    """What is in its place has gone first, and at the end nothing has failed, but for loaders of other processes."""
    for context in (multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")):
        process = context.Process(target=fails, args=(root, agent))
        process.start()
        process.join()
    loader = made(root, agent)
    list(DataLoader(TensorDataset(torch.arange(2))))
    del loader


KINDS: dict[str, Callable[[str, str], None]] = {one.__name__: one for one in (fails, fails_and_exits, goes_unused)}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
