"""The ways of bench.cost, as children run them; see `bench/children.py`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import ConcatDataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

from bench.children import Orders
from bench.loading import epoch, folder, our_loader, quiet, torch_loader, tree_cpu_s
from bench.peers.systems import DEVIATION, MEAN
from sophon_loader import OffloadOptions

TORCH, V2, SPDL, PILLOW, FUSED = WAYS = ("torch", "v2", "spdl", "pillow", "fused")
BATCH_SIZE = 64


@contextmanager
def loading(way: str, data: str, repeat: int, batch_size: int, workers: int) -> Iterator[Orders]:
    """A loader that tells what an epoch costs. Order: `epoch`.

    Args:
        way: one of WAYS.
        data: an ImageFolder tree.
        repeat: how often an epoch goes through it.
        batch_size: samples per batch.
        workers: its processes, or threads.
    """
    quiet()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than the one core: on purpose
    loader = _loader(way, data, repeat, batch_size, workers)
    yield {"epoch": lambda _: measured_epoch(loader)}


def _loader(way: str, data: str, repeat: int, batch_size: int, workers: int) -> Any:
    if way == SPDL:
        from bench.cost_spdl import Threads  # only its own environment has the package

        return Threads(data, repeat, batch_size, workers)
    if way == V2:
        return torch_loader(ConcatDataset([_of_tensors(data)] * repeat), workers, batch_size)
    dataset = folder(data, repeat)
    if way == TORCH:
        return torch_loader(dataset, workers, batch_size)
    return our_loader(dataset, workers, batch_size, agent=None, options=OffloadOptions(fused=way == FUSED))


def _of_tensors(data: str) -> ImageFolder:
    """The pictures as v2's documentation has them fastest: tensors of torchvision's decoder, floats as late as can be.

    That decoder is deprecated since torchvision 0.29, for TorchCodec's, which the project does not need otherwise.
    """
    ops = [
        v2.RandomResizedCrop(224, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, DEVIATION),
    ]
    return ImageFolder(data, v2.Compose(ops), loader=lambda path: decode_image(path, ImageReadMode.RGB))


def measured_epoch(loader: Any) -> dict[str, float]:
    """Images per second of an epoch, and milliseconds of CPU per image of this process and its workers."""
    before_s = tree_cpu_s(os.getpid())
    took_s, samples = epoch(loader)
    return {"images_per_s": samples / took_s, "cpu_ms": (tree_cpu_s(os.getpid()) - before_s) * 1e3 / samples}
