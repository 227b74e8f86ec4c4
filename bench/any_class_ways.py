"""Cost of recording per sample, and the size of a worker: the second part of bench.any_class."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import record
from bench.loading import cpu_s
from sophon_loader import OffloadingDataLoader, OffloadOptions

SIDE_PX = 224
N_NUMBERS = 8192
"""Samples of the dataset without pictures: so many that the costs of an epoch hardly count."""
RECORDED, OTHER = "recorded", "other"
RANDOM = "a class of one's own, random crops and flips; `ImageFolder`"
MEMORY_ROUNDS = 3


class Own(Dataset[Any]):
    """A class of the user's own that does what torchvision's ImageFolder does.

    Args:
        folder: what has the files, their labels and the transform.
    """

    def __init__(self, folder: ImageFolder) -> None:
        self.samples = folder.samples
        self.transform: Any = folder.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


class Drafted(Own):
    """Pictures that gain nothing: `draft` leaves them to Pillow, and all of their pixels are looked at."""

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        image = Image.open(path)
        image.draft("RGB", (SIDE_PX, SIDE_PX))
        return torch.from_numpy(np.asarray(image.convert("RGB"))[0, 0].copy()), label


class Numbers(Dataset[Any]):
    """A few numbers a sample, and no picture."""

    def __len__(self) -> int:
        return N_NUMBERS

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.full((16,), float(index)), index


def folder_of(data: Path, files: Sequence[Path], transform: Callable[[Any], Any]) -> ImageFolder:
    """torchvision's ImageFolder of some of the files.

    Args:
        data: its folder.
        files: those that it keeps.
        transform: of a picture.
    """
    kept = {str(one) for one in files}
    folder = ImageFolder(str(data), transform)
    folder.samples = folder.imgs = [one for one in folder.samples if one[0] in kept]
    folder.targets = [label for _, label in folder.samples]
    return folder


def recording_costs(drawn: ImageFolder, fixed: ImageFolder, rounds: int) -> list[dict[str, Any]]:
    """Rows of two of our loaders each: CPU us per sample of both, and how much more the recorded one takes.

    Args:
        drawn: of a known class, with random crops.
        fixed: the same files without random numbers; both loaders of a row have to give the same values.
        rounds: epochs of each loader; they take turns.

    Raises:
        ValueError: values differ.
    """
    drafted, numbers = Drafted(fixed), Numbers()
    pairs: dict[str, tuple[tuple[Any, bool], tuple[Any, bool]]] = {
        RANDOM: ((Own(drawn), True), (drawn, True)),
        "a class of one's own, Resize and CenterCrop; `ImageFolder`": ((Own(fixed), True), (fixed, True)),
        "pictures that gain nothing, by `draft`; `record=False`": ((drafted, True), (drafted, False)),
        "no pictures; `record=False`": ((numbers, True), (numbers, False)),
    }
    rows = []
    for what, (recorded, other) in pairs.items():
        loaders = {RECORDED: _recording_or_not(*recorded), OTHER: _recording_or_not(*other)}
        rows.append({"what": what, **_in_turns(loaders, rounds, what)})
    return rows


def _recording_or_not(dataset: Any, record: bool) -> OffloadingDataLoader[Any]:
    loader: OffloadingDataLoader[Any] = _loader(OffloadingDataLoader, dataset, 1, options=OffloadOptions(record=record))
    return loader


def _loader(kind: Any, dataset: Any, workers: int, **more: Any) -> Any:
    return kind(dataset, batch_size=16, num_workers=workers, persistent_workers=True, **more)


def _in_turns(loaders: Mapping[str, OffloadingDataLoader[Any]], rounds: int, title: str) -> dict[str, Any]:
    """CPU us per sample of each loader, and of the recorded one beyond the other in the same round."""
    digests = {name: hashlib.sha256() for name in loaders}
    workers = {name: _begun(loader, partial(_digest, digests[name])) for name, loader in loaders.items()}
    if title != RANDOM and digests[RECORDED].digest() != digests[OTHER].digest():
        raise ValueError(f"values must be the same in both loaders, and differ: {title}")
    us: dict[str, list[float]] = {name: [] for name in loaders}
    for number in tqdm(range(rounds), desc=title, unit="round", file=sys.stderr):
        for name in record.in_turns([*loaders], number):
            begun, samples = _cpu_s(workers[name]), 0
            for _, labels in loaders[name]:
                samples += len(labels)
            us[name].append((_cpu_s(workers[name]) - begun) / samples * 1e6)
    for loader in loaders.values():
        loader.close()
    more = [recorded - other for recorded, other in zip(us[RECORDED], us[OTHER], strict=True)]
    return {**{f"{name}_us": record.spread(each) for name, each in us.items()}, "more_us": record.spread(more)}


def _digest(digest: Any, batch: Sequence[torch.Tensor]) -> None:
    for part in batch:
        digest.update(part.numpy())


def _begun(loader: Any, batch: Callable[[Any], None]) -> list[psutil.Process]:
    """The workers that a first epoch starts.

    Args:
        loader: a new one.
        batch: called with each batch; keeps none, as a worker has memory for all batches in use at once.
    """
    before = {one.pid for one in psutil.Process().children()}
    for each in loader:
        batch(each)
    return [one for one in psutil.Process().children() if one.pid not in before]


def _cpu_s(workers: Sequence[psutil.Process]) -> float:
    return time.process_time() + sum(cpu_s(one.pid) for one in workers)


def memory(folder: ImageFolder) -> list[dict[str, Any]]:
    """Rows of loaders with two workers, one after the other: MB of a worker after an epoch, the mean of both.

    Args:
        folder: of a known class; the others load its files by a class of the user's own.
    """
    own, plain = Own(folder), {"options": OffloadOptions(record=False)}
    released = {"options": OffloadOptions(reuse_batch_memory=False)}
    ways: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "torch's DataLoader": (DataLoader, own, {}),
        "ours, `record=False`": (OffloadingDataLoader, own, plain),
        "ours": (OffloadingDataLoader, own, {}),
        "ours, `reuse_batch_memory=False`": (OffloadingDataLoader, own, released),
        "ours, `ImageFolder`": (OffloadingDataLoader, folder, {}),
    }
    mb: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in tqdm(range(MEMORY_ROUNDS), desc="memory", unit="round", file=sys.stderr):
        for way in record.in_turns([*ways], number):
            kind, dataset, more = ways[way]
            loader = _loader(kind, dataset, 2, **more)
            sizes = [one.memory_full_info() for one in _begun(loader, lambda _: None)]
            mb[way].append((mean(one.pss for one in sizes) / 1e6, mean(one.uss for one in sizes) / 1e6))
            if isinstance(loader, OffloadingDataLoader):
                loader.close()
            del loader  # torch's ends its workers then
    found = {way: [*zip(*each, strict=True)] for way, each in mb.items()}
    return [
        {"way": way, "pss_mb": record.spread(pss), "uss_mb": record.spread(uss)} for way, (pss, uss) in found.items()
    ]


def show(costs: list[dict[str, Any]], sizes: list[dict[str, Any]]) -> None:
    """Print both.

    Args:
        costs: as by `recording_costs`.
        sizes: as by `memory`.
    """
    for row in costs:
        more, other = row["more_us"], row[f"{OTHER}_us"]
        print(f"{row['what']}: {other['median']:.0f} us and {more['median']:+.0f} ", end="")
        print(f"({more['min']:+.0f} to {more['max']:+.0f}) by recording")
    for row in sizes:
        print(f"{row['way']}: {row['pss_mb']['median']:.0f} MB a worker, {row['uss_mb']['median']:.0f} private")
