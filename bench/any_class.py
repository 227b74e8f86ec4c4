"""CPU milliseconds per sample of user-defined datasets, of the shapes that public programs have, relative to torch's.

    python -m bench.any_class --data PATH --json any-class.json

Each shape is a Dataset class that opens pictures by `PIL.Image.open` in its `__getitem__`. torch's DataLoader and ours,
`agent=None`, have a worker each that persists, on one core. They take turns, epoch by epoch; a ratio is that of two
epochs one after the other, and its spread is over the rounds. Counted is the CPU time of the worker's threads and of
the main process. Samples seed the generators by their index, so both make the same crops; the batches of the first
round are compared.

Then the cost of recording: two of our loaders in turns, one of them recording, as microseconds per sample and their
difference in the same round. The other one loads the same by torchvision's ImageFolder, a class that is known and not
recorded; or it has `record=False`, where a class gains nothing. Last, the memory of a worker after an epoch, with two
workers and one loader at a time: proportional and private set size.

Bars: torch's / ours >= 1.8 in the median of the shapes that crop or resize first, >= 1.25 where an array is taken at
once, >= 0.9 in all.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from tqdm import tqdm

from bench import any_class_ways, arguments, record
from bench.loading import cpu_s
from sophon_loader import OffloadingDataLoader
from sophon_loader.recording.opener import can_defer

FIRST_BAR, ARRAY_BAR, LEAST_BAR = 1.8, 1.25, 0.9
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE_PX = 224
TORCH, OURS = "torch", "ours"
CROP = transforms.RandomResizedCrop(SIDE_PX)
END = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
TRAIN = transforms.Compose([CROP, transforms.RandomHorizontalFlip(), *END])
EVAL = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(SIDE_PX), *END])
COLOURS = transforms.Compose([transforms.ColorJitter(0.4, 0.4, 0.4), CROP, *END])


def _opened(path: Path) -> Image.Image:
    return Image.open(path).convert("RGB")


def _from_a_file_object(path: Path) -> Any:
    with path.open("rb") as file:
        return TRAIN(Image.open(file).convert("RGB"))


def _turned(path: Path) -> Any:
    return TRAIN(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))


def _views(path: Path) -> Any:
    image = _opened(path)
    return [TRAIN(image), TRAIN(image)]


def _own_numpy(path: Path) -> Any:
    image = _opened(path)
    left, top, height, width = CROP.get_params(image, list(CROP.scale), list(CROP.ratio))
    small = image.crop((left, top, left + width, top + height)).resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR)
    values = np.asarray(small, np.float32) / 255
    return torch.from_numpy(((values - MEAN) / STD).astype(np.float32).transpose(2, 0, 1))


def _array(path: Path) -> Any:
    values = np.asarray(_opened(path))
    top, left = (random.randrange(max(1, side - SIDE_PX)) for side in values.shape[:2])
    part = np.zeros((SIDE_PX, SIDE_PX, 3), np.uint8)
    found = values[top : top + SIDE_PX, left : left + SIDE_PX]
    part[: found.shape[0], : found.shape[1]] = found
    return torch.from_numpy(part.transpose(2, 0, 1).copy())


SHAPES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "RandomResizedCrop, flip, ToTensor, Normalize": ("first", lambda path: TRAIN(_opened(path))),
    "the same, from `open(path, 'rb')`": ("first", _from_a_file_object),
    "the same, behind `exif_transpose`": ("first", _turned),
    "Resize, CenterCrop, ToTensor, Normalize": ("first", lambda path: EVAL(_opened(path))),
    "crop and resize, then numpy": ("first", _own_numpy),
    "two views of a picture": ("first", _views),
    "`np.asarray` at once, cropped there": ("array", _array),
    "ColorJitter before the crop": ("late", lambda path: COLOURS(_opened(path))),
}
"""By name: what comes first, and how a sample is made."""


class Pictures(Dataset[Any]):
    """Files below a folder, each sample made by one of `SHAPES`.

    Args:
        files: the pictures.
        shape: its name.
    """

    def __init__(self, files: Sequence[Path], shape: str) -> None:
        self.files = files
        self.shape = shape

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        torch.default_generator.manual_seed(index)  # `torch.manual_seed` writes down a traceback each time
        random.seed(index)
        np.random.seed(index)
        return SHAPES[self.shape][1](self.files[index]), index


def measured(files: Sequence[Path], shape: str, rounds: int) -> dict[str, Any]:
    """A row: ms per sample of both, their ratios, and whether all values were the same."""
    loaders: dict[str, Any] = {}
    children: dict[str, list[psutil.Process]] = {}
    whole: list[Any] = []
    for name, kind in ((TORCH, DataLoader), (OURS, OffloadingDataLoader)):
        before = {one.pid for one in psutil.Process().children()}
        loader: Any = kind(Pictures(files, shape), batch_size=16, num_workers=1, persistent_workers=True)
        whole.append(list(loader))
        loaders[name] = loader
        children[name] = [one for one in psutil.Process().children() if one.pid not in before]
    same = _same(*whole)
    del whole
    ms: dict[str, list[float]] = {TORCH: [], OURS: []}
    for number in tqdm(range(rounds), desc=shape, unit="round", file=sys.stderr):
        for which in record.in_turns([TORCH, OURS], number):
            begun = _cpu_s(children[which])
            for _ in loaders[which]:
                pass
            ms[which].append((_cpu_s(children[which]) - begun) / len(files) * 1e3)
    told = loaders[OURS].report().as_dict()
    loaders[OURS].close()
    return {
        "shape": shape,
        "first": SHAPES[shape][0],
        "torch_ms": record.spread(ms[TORCH]),
        "ours_ms": record.spread(ms[OURS]),
        "ratio": record.spread([torchs / ours for torchs, ours in zip(ms[TORCH], ms[OURS], strict=True)]),
        "by_c": told["fused"] / max(1, told["fused"] + told["unfused"]),
        "same": same,
    }


def _cpu_s(children: Sequence[psutil.Process]) -> float:
    return time.process_time() + sum(cpu_s(one.pid) for one in children)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(map(_same, one, other))


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.any_class", __doc__, pictures=True)
    parser.add_argument("--rounds", type=arguments.count(), default=5)
    parser.add_argument("--samples", type=arguments.count(), default=128, help="Pictures of the folder, at most.")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print it, write the results; 1 when a bar is missed or a value differs."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    if not can_defer():
        remedy = "build the extension with `python setup.py build_ext --inplace`, on a processor with AVX2"
        bench.refuse("the decoder", "one that gives the installed Pillow's pixels", "none", remedy)
    kinds = {".jpg", ".jpeg"}
    files = sorted(one for one in options.data.rglob("*") if one.suffix.lower() in kinds)[: options.samples]
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = [measured(files, shape, options.rounds) for shape in SHAPES]
    for row in rows:
        theirs, ours = row["torch_ms"]["median"], row["ours_ms"]["median"]
        print(f"{row['shape']}: {theirs:.2f} ms -> {ours:.2f} ms, {row['ratio']['median']:.2f} times; ", end="")
        print(f"{row['by_c']:.0%} of the pictures by C{'' if row['same'] else '; VALUES DIFFER'}")
    found = {one: median(row["ratio"]["median"] for row in rows if row["first"] == one) for one in ("first", "array")}
    least = min(row["ratio"]["median"] for row in rows)
    print(f"crop or resize first: {found['first']:.2f} times (bar {FIRST_BAR}); ", end="")
    print(f"an array at once: {found['array']:.2f} (bar {ARRAY_BAR}); least: {least:.2f} (bar {LEAST_BAR})")
    drawn, fixed = (any_class_ways.folder_of(options.data, files, one) for one in (TRAIN, EVAL))
    # More rounds: a difference of two times is small compared with the noise of either.
    costs = any_class_ways.recording_costs(drawn, fixed, 4 * options.rounds + 1)
    memory = any_class_ways.memory(drawn)
    any_class_ways.show(costs, memory)
    record.write(options.output, {"samples": len(files), "shapes": rows, "recording": costs, "memory": memory})
    kept = found["first"] >= FIRST_BAR and found["array"] >= ARRAY_BAR and least >= LEAST_BAR
    return int(not (kept and all(row["same"] for row in rows)))


if __name__ == "__main__":
    sys.exit(main())
