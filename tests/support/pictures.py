"""Pictures on disk, and the pipelines that the tests run over them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder


def picture(width: int, height: int, seed: int) -> Image.Image:
    """An RGB image that compresses like a photo: soft shapes, an edge or two, a little noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    soft = soft + rng.integers(-9, 10, soft.shape, dtype=np.int16)
    soft[height // 3 :, width // 2 :] += int(rng.integers(-60, 60))
    return Image.fromarray(np.clip(soft, 0, 255).astype(np.uint8))


def make_tree(
    root: Path, files: int = 48, classes: int = 4, sides: tuple[int, int] = (40, 240), plain: bool = False
) -> Path:
    """An ImageFolder tree of JPEG files, with a grey one, a PNG and nested folders among them.

    Args:
        sides: smallest and largest width and height, in px.
        plain: leave out the odd ones.
    """
    rng = random.Random(files)
    for number in range(files):
        folder = root / f"class_{number % classes}"
        if number % 11 == 10 and not plain:
            folder /= "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        image = picture(rng.randrange(*sides), rng.randrange(*sides), number)
        if number == 5 and not plain:
            image.save(folder / f"{number:03}.png")
        elif number == 7 and not plain:
            image.convert("L").save(folder / f"{number:03}.jpg")
        else:
            image.save(folder / f"{number:03}.jpg", quality=rng.randrange(70, 96), progressive=number % 9 == 8)
    return root


def train_transform(px: int = 48) -> Any:
    """Every draw of an ordinary training pipeline, at a small size."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(px),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.4, 0.4, 0.4),
            v1.ToTensor(),
            v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def eval_transform(px: int = 48) -> Any:
    """A pipeline that draws nothing."""
    return v1.Compose([v1.Resize(px + 8), v1.CenterCrop(px), v1.ToTensor()])


def folder(root: Path, transform: Any = None, **arguments: Any) -> ImageFolder:
    """The ImageFolder of a tree, with the training transform unless told otherwise."""
    return ImageFolder(str(root), train_transform() if transform is None else transform, **arguments)
