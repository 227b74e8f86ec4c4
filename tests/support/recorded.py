"""Datasets of classes of their own, which open pictures in ways that differ in when, where and by whom they are seen.

What one sample moves on `self` is part of the next one, so that a sample that is made twice shows.
"""

from __future__ import annotations

import copy
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms


class Own(Dataset[Any]):
    """A random crop; the target is the index, and a number of a generator on `self`.

    Args:
        root: of the pictures.
        moves: False if samples are to be alike in whatever order they are made.
    """

    def __init__(self, root: Path, *, moves: bool = True) -> None:
        self.files = sorted(path for path in root.rglob("*") if path.suffix in (".jpg", ".png"))
        self.own = random.Random(4)
        self.moves = moves
        self.crop = transforms.Compose([transforms.RandomResizedCrop(48), transforms.ToTensor()])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        moved = self.own.randrange(1 << 20) if self.moves else 0
        return self.seen(Image.open(self.files[index])), index << 20 | moved

    def seen(self, image: Image.Image) -> Any:
        return self.crop(image.convert("RGB"))


class InBatches(Own):
    """Makes batches in one call, and opens all pictures first."""

    def __getitems__(self, indices: list[int]) -> Any:
        images = [Image.open(self.files[index]) for index in indices]
        moved = [index << 20 | self.own.randrange(1 << 20) for index in indices]
        return list(zip(map(self.seen, images), moved, strict=True))


class InThreads(Own):
    """Looks at several pictures in threads, which also open some of their own."""

    def seen(self, image: Image.Image) -> Any:
        def look(one: Image.Image) -> Any:
            return transforms.functional.to_tensor(one.convert("RGB").resize((24, 24)))

        def opened(number: int) -> Any:
            return look(Image.open(self.files[number]))

        with ThreadPoolExecutor(6) as pool:
            others = [Image.open(one) for one in self.files[:3]]
            return torch.cat([*pool.map(look, [image, *others]), *pool.map(opened, range(3))])


class Later(Own):
    """Looks at the picture of the sample before."""

    kept: Image.Image | None = None

    def seen(self, image: Image.Image) -> Any:
        before, self.kept = self.kept or image, image
        return super().seen(before)


class Copied(Own):
    """Looks at copies of the picture, and of a dataset that has it."""

    kept: Image.Image | None = None

    def seen(self, image: Image.Image) -> Any:
        self.kept = image.convert("RGB")
        other, self.kept = copy.deepcopy(self), None
        part = pickle.loads(pickle.dumps(image.crop((4, 4, 36, 36))))
        assert other.kept is not None
        return torch.cat([*map(transforms.functional.to_tensor, (other.kept.resize((32, 32)), part.convert("RGB")))])


class Forks(Own):
    """Has a process that it forks look at the picture, too."""

    def seen(self, image: Image.Image) -> Any:
        part = image.convert("RGB").resize((20, 16))
        out, told = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(told, part.tobytes())
            finally:
                os._exit(0)
        os.close(told)
        with open(out, "rb") as found:
            theirs = torch.frombuffer(bytearray(found.read()), dtype=torch.uint8).reshape(16, 20, 3)
        os.waitpid(child, 0)
        return torch.cat([theirs.permute(2, 0, 1) / 255, transforms.functional.to_tensor(part)])


class Unseen(Own):
    """Leaves the picture to whoever collates: `seen_late`, or nobody but the queue to the main process."""

    def seen(self, image: Image.Image) -> Any:
        return image


def seen_late(samples: list[Any]) -> Any:
    """A `collate_fn` that looks at the pictures first."""
    sized = [image.convert("RGB").resize((30, 30)) for image, _ in samples]
    return torch.stack([*map(transforms.functional.to_tensor, sized)]), torch.tensor([target for _, target in samples])


def left_unseen(samples: list[Any]) -> Any:
    """A `collate_fn` that looks at nothing."""
    return [image for image, _ in samples], torch.tensor([target for _, target in samples])
