"""What the tests of the whole loader share: options, digests of epochs, and datasets and samplers by name.

Everything that a spawned loader worker must unpickle stands at the top level of this module.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sophon_loader import LocalAgent, OffloadingDataLoader, OffloadOptions
from sophon_loader.wire.messages import Sample

POLICIES = ("no-off", "all-off", "resize-off")
QUICK = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=1.5, resend_after_s=5.0, window=16)
"""Time-outs that keep a test of a fault short; the agent must answer pings while it starts, and it does."""
LOCAL = LocalAgent(workers=1)
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 1.0
"""How long torch waits for the worker of an iterator that was dropped together with an error; 5 s by default."""
MakeLoader = Callable[..., OffloadingDataLoader[Any]]
"""What the fixture `make` is."""


def sample_message(number: int) -> Sample:
    """An agent's answer to the request of that id."""
    return Sample(
        id=number,
        cut=1,
        encoding="pixels",
        meta={},
        file_nbytes=10,
        op_s=[0.0, 0.0, 0.0],
        upkeep_s=0.0,
        queued_s=0.0,
        note="",
    )


# --- digests --------------------------------------------------------------------------------------------------


def digest_of(value: Any) -> str:
    """A short hash of a sample's part: class, dtype, shape and every bit."""
    if isinstance(value, torch.Tensor):
        head, body = f"{value.dtype}{tuple(value.shape)}", value.cpu().contiguous().numpy().tobytes()
    elif isinstance(value, Image.Image):
        head, body = f"{value.mode}{value.size}", value.tobytes()
    else:
        head, body = "", repr(value).encode()
    return hashlib.blake2b(f"{type(value).__name__}{head}".encode() + body, digest_size=8).hexdigest()


def samples_of(batches: Iterable[Any]) -> list[tuple[str, Any]]:
    """(digest of the image, target) of every sample of collated batches, in order."""
    found: list[tuple[str, Any]] = []
    for images, targets in batches:
        found += [(digest_of(image), target) for image, target in zip(images, targets.tolist(), strict=True)]
    return found


def said(error: BaseException) -> str:
    """All that a user sees of an exception."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def run_epoch(loader: Any) -> list[tuple[str, Any]]:
    """`samples_of` one epoch of a loader, which is closed afterwards."""
    try:
        return samples_of(loader)
    finally:
        loader.close()


# --- what spawned workers must find by name -------------------------------------------------------------------


class SeenIndex:
    """A sampler that keeps what it has handed out."""

    def __init__(self, order: Iterable[int]) -> None:
        self.order = list(order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class PlainPictures(torch.utils.data.Dataset[Any]):
    """The OffloadableDataset protocol, and nothing that torchvision has."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.root = str(root)
        self.transform = transform
        self.keys = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, index: int) -> str:
        return self.keys[index]

    def target(self, index: int) -> int:
        return len(self.keys[index]) + 1000 * index

    def __getitem__(self, index: int) -> Any:
        with Image.open(os.path.join(self.root, self.keys[index])) as image:
            return self.transform(image.convert("RGB")), self.target(index)


def noisy_target(target: int) -> float:
    """A target transform that draws from all three generators."""
    return target + random.random() + float(np.random.random()) + float(torch.rand(()))


def times_two(image: torch.Tensor) -> torch.Tensor:
    """An op that no registry knows."""
    return image * 2


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that keeps the samples apart."""
    return samples
