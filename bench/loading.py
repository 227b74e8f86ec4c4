"""Datasets, pipelines and loaders that several benches share."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import record
from sophon_loader import LocalAgent, OffloadingDataLoader

OPS = 5
"""Number of ops of `training_pipeline`, with Decode."""


def training_pipeline() -> Callable[[Any], Any]:
    """The usual ImageNet training transforms."""
    pipeline: Callable[[Any], Any] = v1.Compose(
        [
            v1.RandomResizedCrop(224),
            v1.RandomHorizontalFlip(),
            v1.ToTensor(),
            v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    return pipeline


def folder(data: str | Path, repeat: int = 1) -> Any:
    """The pictures with the training pipeline.

    Args:
        data: an ImageFolder tree.
        repeat: how often an epoch goes through it, so that a short epoch becomes measurable.
    """
    one = ImageFolder(str(data), training_pipeline())
    return one if repeat == 1 else ConcatDataset([one] * repeat)


def torch_loader(dataset: Any, workers: int, batch_size: int = 32) -> DataLoader[Any]:
    """torch's own DataLoader.

    Args:
        dataset: what it reads.
        workers: its worker processes.
        batch_size: samples per batch.
    """
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0)


def our_loader(dataset: Any, workers: int, batch_size: int = 32, **arguments: Any) -> OffloadingDataLoader[Any]:
    """Ours; by default with a local agent of one worker.

    Args:
        dataset: what it reads.
        workers: its worker processes.
        batch_size: samples per batch.
        arguments: more of its constructor's.
    """
    arguments = {"agent": LocalAgent(workers=1), **arguments}
    return OffloadingDataLoader(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **arguments
    )


def epoch(loader: Any) -> tuple[float, int]:
    """(seconds, samples) of one epoch."""
    started = time.perf_counter()
    samples = sum(len(labels) for _, labels in loader)
    return time.perf_counter() - started, samples


def samples_per_s(loader: DataLoader[Any], step_s: float = 0.0) -> float:
    """Throughput of one epoch.

    Args:
        loader: any.
        step_s: length of the training step of a batch, during which the CPU is left alone.
    """
    started_s, samples = time.perf_counter(), 0
    for _, labels in loader:
        samples += len(labels)
        time.sleep(step_s)
    return samples / (time.perf_counter() - started_s)


def rates_in_turns(
    loaders: Mapping[str, Any], rounds: int, title: str, about: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """A row per round: its number, what it is about, and each loader's samples per second of an epoch.

    Args:
        loaders: by their names; they take turns, and which goes first changes every round.
        rounds: how many.
        title: of the progress bar.
        about: what all rows say.
    """
    rows = []
    for number in tqdm(range(rounds), desc=title, file=sys.stderr):
        row: dict[str, Any] = {"round": number, **about}
        for name in record.in_turns(list(loaders), number):
            row[name] = samples_per_s(loaders[name])
        rows.append(row)
    return rows


def cpu_s(pid: int) -> float:
    """CPU seconds of a process, by the kernel's clock of it (psutil counts in ticks of 10 ms)."""
    return time.clock_gettime(~pid << 3 | 2)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and its descendants."""
    return cpu_s(pid) + sum(cpu_s(child.pid) for child in psutil.Process(pid).children(recursive=True))


def worker_pss_mb() -> list[float]:
    """Proportional set size, in MB, of this process's children that are DataLoader workers."""
    pids = [child.pid for child in multiprocessing.active_children()]
    return [psutil.Process(pid).memory_full_info().pss / 1e6 for pid in pids if pid is not None]


MEMORY = ("pss_mb", "private_mb", "shm_mb")
READ_EVERY_S = 0.05


def memory_peaks(run: Callable[[], Any]) -> dict[str, float]:
    """The most memory, in MB, that this process and its children have while something runs: their proportional set
    sizes, their private pages, and what they hold in /dev/shm.

    Args:
        run: what uses memory.
    """
    most, ended = np.zeros(len(MEMORY)), threading.Event()

    def read() -> None:
        while not ended.wait(READ_EVERY_S):
            this = psutil.Process()
            processes = [this, *this.children(recursive=True)]
            sizes = [one.memory_full_info() for one in processes]
            shared_nbytes = _held_in_shm([one.pid for one in processes])
            np.maximum(
                most, [sum(size.pss for size in sizes), sum(size.uss for size in sizes), shared_nbytes], out=most
            )

    reader = threading.Thread(target=read, name="memory-peaks")
    reader.start()
    try:
        run()
    finally:
        ended.set()
        reader.join()
    return dict(zip(MEMORY, (most / 1e6).tolist(), strict=True))


def _held_in_shm(pids: list[int]) -> int:
    """Bytes of the files in /dev/shm that processes have open, which have no names any more."""
    device, found = os.stat("/dev/shm").st_dev, {}
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                file = os.stat(f"/proc/{pid}/fd/{name}")
                if file.st_dev == device:
                    found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def quiet() -> None:
    """One thread in the main process too, so that it does not take the workers' cores."""
    torch.set_num_threads(1)
