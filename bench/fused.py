"""Milliseconds per image from a JPEG file to a slot of a batch: our own C against torchvision's ops on Pillow.

    python -m bench.fused --data PATH --json fused.json
    python -m bench.fused --data PATH --seeds 20          no times: compare 20 crops of each file

torchvision's way is RandomResizedCrop(224), RandomHorizontalFlip, ToTensor and Normalize on Pillow's picture, copied
into a batch that is kept. Ours draws the same box and side with torchvision's functions, decodes the box alone
(`fused.decode`), resizes it, and writes it mirrored and looked up in a table to the slot (`fused.finish`). What one of
them leaves to Pillow takes torchvision's way, and its time counts as ours.

Both take turns on each file, on one core and one thread, files in memory. Times are the thread's CPU time, so that
other work on the machine matters less. A ratio is that of two totals of one round; its spread is over the rounds.
Each file's two slots are compared bit for bit in each round, outside the times.

Why it is fast: rows and columns outside the box are neither transformed nor coloured, no picture is kept between two
steps, and the values of a slot are written once. Where it loses: boxes of nearly all of a picture gain least, and a
progressive file gains less.

Bars: torchvision's time / ours >= 3.5; 0.95 of the baseline files go through.
"""

from __future__ import annotations

import io
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision import transforms
from torchvision.transforms import InterpolationMode
from tqdm import tqdm

from bench import arguments, record
from sophon_loader import native
from sophon_loader.native import fused

RATIO_BAR, SHARE_BAR = 3.5, 0.95
SIZE_PX = 224
SLOTS = 64
"""Number of samples in the batch: 38 MB, which no cache holds."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FILTERS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC}
RESAMPLING = {"bilinear": 2, "bicubic": 3}
TORCHVISION, FUSED = "torchvision", "fused"

Slot: TypeAlias = torch.Tensor
Way = Callable[[bytes, Slot], bool]


@dataclass(frozen=True)
class File:
    """A JPEG file.

    Args:
        data: all of it.
        baseline: whether it is sequential, in grey or YCbCr: what our decoder is for.
    """

    data: bytes
    baseline: bool


class Chain:
    """The ops, and both ways through them.

    Args:
        name: of the filter.
    """

    def __init__(self, name: str) -> None:
        self.crop = transforms.RandomResizedCrop(SIZE_PX, interpolation=FILTERS[name])
        self.ends = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
        self.ops = transforms.Compose([self.crop, transforms.RandomHorizontalFlip(), self.ends])
        self.filter = RESAMPLING[name]
        ramp = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 256, 3)
        self.table: NDArray[np.float32] = self.ends(Image.fromarray(ramp))[:, 0].contiguous().numpy()

    def torchvision(self, data: bytes, slot: Slot) -> bool:
        """True."""
        with Image.open(io.BytesIO(data)) as image:
            slot.copy_(self.ops(image.convert("RGB")))
        return True

    def fused(self, data: bytes, slot: Slot) -> bool:
        """Make a sample; returns True if the fused path did, False if another way was needed."""
        size = native.image_size(data)
        if size is not None:
            state = torch.get_rng_state()
            top, left, height, width = self._box(*size)
            flip = bool(torch.rand(1) < 0.5)
            if self._done(data, (left, top, left + width, top + height), flip, slot):
                return True
            torch.set_rng_state(state)
        self.torchvision(data, slot)
        return False

    def _box(self, width: int, height: int) -> tuple[int, int, int, int]:
        shape = torch.empty(1).expand(1, height, width)  # no picture is needed to draw, only one's size
        box: tuple[int, int, int, int] = self.crop.get_params(shape, list(self.crop.scale), list(self.crop.ratio))
        return box

    def _done(self, data: bytes, box: tuple[int, int, int, int], flip: bool, slot: Slot) -> bool:
        pixels = fused.decode(data, box)
        small = None if pixels is None else fused.resize(pixels, (SIZE_PX, SIZE_PX), filter=self.filter)
        if small is None:
            return False
        if small.shape[2] == 1:
            small = small.repeat(3, axis=2)
        return fused.finish(small, self.table, slot.numpy(), flip_horizontal=flip)


def files_of(folder: Path) -> list[File]:
    """The JPEG files below a folder."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.suffix.lower() in {".jpg", ".jpeg"}):
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            if image.format in ("JPEG", "MPO"):
                sequential = not image.info.get("progressive") and image.mode in ("RGB", "L")
                found.append(File(data, sequential))
    return found


def in_order(length: int, seed: int) -> Iterator[tuple[int, int]]:
    """Positions in an order of its own for each seed, as a sampler gives them, and the seed of each one's draws."""
    rng = random.Random(seed)
    for position in rng.sample(range(length), length):
        yield position, rng.getrandbits(63)


def cpu_ms(way: Way, data: bytes, slot: Slot) -> tuple[float, bool]:
    begin = time.thread_time_ns()
    done = way(data, slot)
    return (time.thread_time_ns() - begin) / 1e6, done


def one_round(files: list[File], chain: Chain, number: int, label: str) -> dict[str, Any]:
    """Mean ms of both ways, interleaved; how many files went through, and how many slots differ."""
    ways: dict[str, Way] = {TORCHVISION: chain.torchvision, FUSED: chain.fused}
    batches = {name: torch.empty(SLOTS, 3, SIZE_PX, SIZE_PX) for name in ways}
    total, through, unlike = dict.fromkeys(ways, 0.0), 0, 0
    turns = tqdm(in_order(len(files), number), desc=label, total=len(files), unit="image", file=sys.stderr)
    for at, (position, seed) in enumerate(turns):
        slots = {name: batch[at % SLOTS] for name, batch in batches.items()}
        for name in record.in_turns(list(ways), at + number):
            torch.manual_seed(seed)
            took_ms, done = cpu_ms(ways[name], files[position].data, slots[name])
            total[name] += took_ms
            through += name == FUSED and done
        unlike += not _same(slots[TORCHVISION], slots[FUSED])
    ms = {name: spent / len(files) for name, spent in total.items()}
    return {"round": number, "ms": ms, "through": through, "unlike": unlike}


def _same(one: Slot, other: Slot) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def compared(files: list[File], seeds: int) -> dict[str, Any]:
    """Crops of each file in each seed, with both filters: how many there were, went through, and differ."""
    chains = [Chain(name) for name in FILTERS]
    want, got = (torch.empty(3, SIZE_PX, SIZE_PX) for _ in range(2))
    found = {"crops": 0, "through": 0, "unlike": 0}
    for seed in tqdm(range(seeds), desc="seeds", file=sys.stderr):
        for position, drawn in in_order(len(files), seed):
            for chain in chains:
                for way, slot in ((chain.torchvision, want), (chain.fused, got)):
                    torch.manual_seed(drawn)
                    done = way(files[position].data, slot)
                found["crops"] += 1
                found["through"] += done
                found["unlike"] += not _same(want, got)
    return found


def measured(files: list[File], rounds: int) -> list[dict[str, Any]]:
    """A row per filter."""
    rows = []
    for name in FILTERS:
        chain = Chain(name)
        one_round(files[:50], chain, 0, "warm-up")
        singles = [one_round(files, chain, i, f"{name}, round {i + 1}/{rounds}") for i in range(rounds)]
        rows.append(
            {
                "filter": name,
                "ms": {way: record.spread([one["ms"][way] for one in singles]) for way in (TORCHVISION, FUSED)},
                "ratio": record.spread([one["ms"][TORCHVISION] / one["ms"][FUSED] for one in singles]),
                "through": median(one["through"] for one in singles) / len(files),
                "of_baseline": median(one["through"] for one in singles) / sum(one.baseline for one in files),
                "unlike": sum(one["unlike"] for one in singles),
                "rounds": singles,
            }
        )
    return rows


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.fused", __doc__, pictures=True)
    parser.add_argument("--rounds", type=arguments.count(), default=7)
    what = "Measure nothing, and compare this many crops of each file instead; 0 to measure."
    parser.add_argument("--seeds", type=arguments.count(0), default=0, help=what)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure or compare, print it, write the results; 1 when a bar is missed or a value differs."""
    bench = parser()
    options = arguments.parsed(bench, argv)
    if fused.DECODE not in fused.checked():
        remedy = "build the extension with `python setup.py build_ext --inplace`, on a processor with AVX2"
        bench.refuse("the decoder", "one that gives the installed Pillow's pixels", "none", remedy)
    files = files_of(options.data)
    if not any(one.baseline for one in files):
        bench.refuse("--data", "a folder with baseline JPEG files", options.data, "give another one")
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if options.seeds:
        found = compared(files, options.seeds)
        print(f"{found['crops']} crops, {found['through']} decoded by us, {found['unlike']} with a value that differs")
        record.write(options.output, {"files": len(files), "seeds": options.seeds, **found})
        return int(found["unlike"] > 0)
    rows = measured(files, options.rounds)
    for row in rows:
        theirs, ours = (row["ms"][way]["median"] for way in (TORCHVISION, FUSED))
        print(f"{row['filter']}: {theirs:.2f} ms -> {ours:.2f} ms; {row['through']:.1%} of the files go through,")
        print(f"  {row['of_baseline']:.1%} of the baseline ones; {row['unlike']} with a value that differs")
        print(record.judged(f"  {TORCHVISION} / {FUSED}", row["ratio"], RATIO_BAR))
    files_told = {"files": len(files), "baseline": sum(one.baseline for one in files)}
    record.write(options.output, {**files_told, "filters": rows})
    return int(not all(is_kept(row) for row in rows))


def is_kept(row: dict[str, Any]) -> bool:
    """Return True if a row keeps all bars."""
    fast = row["ratio"]["median"] >= RATIO_BAR
    return bool(fast and row["of_baseline"] >= SHARE_BAR and not row["unlike"])


if __name__ == "__main__":
    sys.exit(main())
