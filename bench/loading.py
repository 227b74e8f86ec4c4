"""Datasets, pipelines and loaders that several benches share."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import LocalAgent, OffloadingDataLoader


def training_pipeline() -> Callable[[Any], Any]:
    """The usual ImageNet training transforms."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(224),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def folder(data: Path, repeat: int = 1) -> Any:
    """The pictures with the training pipeline, `repeat` times over so that a short epoch becomes measurable."""
    one = ImageFolder(str(data), training_pipeline())
    return one if repeat == 1 else ConcatDataset([one] * repeat)


def torch_loader(dataset: Any, workers: int, batch_size: int = 32) -> DataLoader[Any]:
    """torch's own."""
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def our_loader(dataset: Any, workers: int, batch_size: int = 32, **arguments: Any) -> OffloadingDataLoader:
    """Ours; by default with a local agent of one worker."""
    arguments = {"agent": LocalAgent(workers=1), **arguments}
    return OffloadingDataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **arguments
    )


def epoch(loader: Any) -> tuple[float, int]:
    """(seconds, samples) of one epoch."""
    started = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader)
    return time.perf_counter() - started, samples


def worker_pss_mb() -> list[float]:
    """Proportional set size, in MB, of this process's children that are DataLoader workers."""
    import multiprocessing

    pids = [child.pid for child in multiprocessing.active_children()]
    return [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in pids if pid is not None]


def quiet() -> None:
    """One thread in the main process too, so that it does not take the workers' cores."""
    torch.set_num_threads(1)
