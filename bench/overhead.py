"""Cost of the loader where there is nothing to gain: relative to torch's DataLoader on the same files.

    python -m bench.overhead --json overhead.json
    python -m bench.overhead --only throughput --workers 1 --rounds 3

throughput: both read the same ImageFolder; ours through a local agent and without any wire limit, under `no-off` and
    `auto`. They take turns, epoch by epoch, and which one goes first changes every round; a round's figure is the ratio
    of their throughputs. Once with nothing behind the loader, and once with a training step that takes 1.5 times as
    long as torch needs for a batch and leaves the CPU alone, as a GPU that is the bottleneck. Bar: median >= 0.98.
first-batch: seconds from before the constructor to the first batch, in a fresh process each time, with one worker; ours
    under `auto` with an agent that runs already. Bar: no later than torch's + 0.3 s (medians).
constructor: an ImageFolder of 1.28 million empty files in a temporary folder, whose names the kernel still knows, with
    memory that the machine has at hand. Bar: ImageFolder and our constructor together take <= 1.2 times as long as
    ImageFolder. Also the seconds that the first `iter()` prepares (agreement, plan), with num_workers=0 so that no
    worker is started.
memory: RSS, PSS and USS (private pages) of the main process and of one worker after each of 60 epochs, in a fresh
    process, ours under `auto` with a local agent. Judged by USS, since PSS also grows when another program that maps
    the same libraries ends, from the median of epochs 21 to 40 to that of 41 to 60: in the first ones the allocator
    takes what it needs, later it gives back and takes again, 10 MB and more between two epochs. torch's own worker
    grows too. Bar: ours grows by <= 4 MB more than torch's.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import arguments, record
from bench.children import alone, local_agent
from bench.loading import folder, our_loader, quiet, samples_per_s, torch_loader, training_pipeline
from sophon_loader import OffloadingDataLoader

BAR_THROUGHPUT = 0.98
BAR_FIRST_BATCH_S = 0.3
BAR_CONSTRUCTOR = 1.2
BAR_GROWTH_MB = 4.0
POLICIES = ("no-off", "auto")
GPU_BOUND = 1.5
"""Length of the training step, in torch's own times per batch."""
SAMPLES, CLASSES = 1_280_000, 1000
"""Numbers of samples and classes, as many as ImageNet has."""
WARM_NBYTES = 1 << 30
EPOCHS, WINDOW = 60, 20
"""Numbers of epochs for memory: all of them, and those of a median."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results."""
    options = arguments.parsed(parser(), argv)
    quiet()
    sections: dict[str, Callable[[], Any]] = {
        "throughput": lambda: throughput(options.data, options.workers, options.rounds, options.repeat),
        "first-batch": lambda: first_batch(options.data, options.rounds),
        "constructor": lambda: constructor(options.rounds),
        "memory": lambda: memory(options.data),
    }
    record.write(options.output, {name: sections[name]() for name in options.only})
    return 0


SECTIONS = ("throughput", "first-batch", "constructor", "memory")


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.overhead", __doc__, pictures=True)
    add = parser.add_argument
    add("--only", nargs="+", default=list(SECTIONS), choices=SECTIONS, action=arguments.Distinct)
    add("--rounds", type=arguments.count(), default=5)
    add("--repeat", type=arguments.count(), default=4)
    workers: dict[str, Any] = {"type": arguments.count(), "action": arguments.Distinct, "metavar": "N"}
    add("--workers", nargs="+", default=[1, 2], **workers)
    return parser


def say(what: str, figures: str, holds: bool, bar: str) -> None:
    """One line of the output.

    Args:
        what: was measured.
        figures: of it.
        holds: whether the bar is kept.
        bar: in words.
    """
    print(f"{what}: {figures} (bar {bar}: {'ok' if holds else 'below'})", flush=True)


# --- throughput -------------------------------------------------------------------------------------------------------


def throughput(data: Path, workers: Sequence[int], rounds: int, repeat: int) -> list[dict[str, Any]]:
    """Ratios per number of workers, policy, and what limits.

    Args:
        data: an ImageFolder tree.
        workers: numbers of worker processes.
        rounds: epochs of each loader that count.
        repeat: how often an epoch goes through the pictures.
    """
    dataset = folder(data, repeat)
    return [row for number in workers for row in throughput_of(dataset, number, rounds)]


def throughput_of(dataset: Any, workers: int, rounds: int) -> list[dict[str, Any]]:
    """Ratios per policy and what limits, with one number of workers.

    Args:
        dataset: what all loaders read.
        workers: worker processes.
        rounds: epochs of each loader that count.
    """
    plain = torch_loader(dataset, workers)
    ours = {policy: our_loader(dataset, workers, policy=policy) for policy in POLICIES}
    ours["auto"].measure()
    samples_per_s(plain)  # start workers, fill the page cache
    assert plain.batch_size is not None
    batch_s = plain.batch_size / samples_per_s(plain)
    found = []
    for limit, step_s in (("nothing", 0.0), ("gpu", GPU_BOUND * batch_s)):
        measured = compared({"torch": plain, **ours}, step_s, rounds, f"{workers} worker(s), {limit}")
        for policy, loader in ours.items():
            ratio = record.spread([row[policy] / row["torch"] for row in measured])
            what = f"{policy} / torch, {workers} worker(s), limited by {limit}"
            figures = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
            say(what, figures, ratio["median"] >= BAR_THROUGHPUT, f">= {BAR_THROUGHPUT}")
            told = loader.report().as_dict()
            row = {"policy": policy, "workers": workers, "limit": limit, "step_s": step_s, "ratio": ratio}
            row["rounds"] = [{"torch": one["torch"], "ours": one[policy]} for one in measured]
            found.append({**row, "bottleneck": told["bottleneck"], "choices": told["choices"]})
    for loader in ours.values():
        loader.close()
    return found


def compared(loaders: dict[str, DataLoader[Any]], step_s: float, rounds: int, title: str) -> list[dict[str, float]]:
    """Samples per second of each loader, round by round, after an epoch each to settle.

    Args:
        loaders: by name.
        step_s: length of the training step of a batch.
        rounds: epochs of each that count.
        title: of the progress bar.
    """
    for loader in loaders.values():
        samples_per_s(loader, step_s)
    return [
        {name: samples_per_s(loaders[name], step_s) for name in record.in_turns(list(loaders), number)}
        for number in tqdm(range(rounds), desc=title, file=sys.stderr)
    ]


# --- first batch ------------------------------------------------------------------------------------------------------


def first_batch(data: Path, rounds: int) -> dict[str, Any]:
    """Seconds to the first batch of both loaders, in turns.

    Args:
        data: an ImageFolder tree.
        rounds: fresh processes of each that count.
    """
    rows = []
    with local_agent(data) as (address, _):
        addresses = {"torch": None, "ours": address}
        for number in tqdm(range(-1, rounds), desc="first batch", file=sys.stderr):
            names = record.in_turns(["torch", "ours"], number)
            row = {name: alone(first_batch_s, {"data": data, "address": addresses[name]}) for name in names}
            if number >= 0:  # the first pair fills caches
                rows.append(row)
    spreads = {name: record.spread([row[name] for row in rows]) for name in ("torch", "ours")}
    later_s = spreads["ours"]["median"] - spreads["torch"]["median"]
    figures = (
        f"torch {spreads['torch']['median']:.3f} s, ours {spreads['ours']['median']:.3f} s, later by {later_s:.3f} s"
    )
    say("first batch after the constructor", figures, later_s <= BAR_FIRST_BATCH_S, f"<= {BAR_FIRST_BATCH_S} s")
    return {"rounds": rows, **spreads, "later_s": later_s}


def first_batch_s(data: str, address: str | None) -> float:
    """Seconds from before the constructor to the first batch; in a process of its own.

    Args:
        data: an ImageFolder tree.
        address: of an agent for our loader; None for torch's loader.
    """
    quiet()
    dataset = folder(data)
    started_s = time.perf_counter()
    loader = torch_loader(dataset, 1) if address is None else our_loader(dataset, 1, agent=address)
    next(iter(loader))
    return time.perf_counter() - started_s


# --- constructor ------------------------------------------------------------------------------------------------------


def constructor(rounds: int) -> dict[str, Any]:
    """Seconds of ImageFolder, of our constructor and of the first iter(), each round in a fresh process."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        empty_files(root)
        with local_agent(root) as (address, _):
            rows = [
                alone(constructor_s, {"data": root, "address": address})
                for _ in tqdm(range(rounds), desc="constructor", file=sys.stderr)
            ]
    spreads = {name: record.spread([row[name] for row in rows]) for name in rows[0]}
    ratio = spreads["ratio"]
    figures = f"ImageFolder {spreads['image_folder_s']['median']:.2f} s, "
    figures += f"ours {spreads['ours_s']['median']:.2f} s, both / ImageFolder {ratio['median']:.3f}, "
    figures += f"torch {spreads['torch_s']['median']:.3f} s, first iter() {spreads['iter_s']['median']:.2f} s"
    say(f"constructor, {SAMPLES} samples", figures, ratio["median"] <= BAR_CONSTRUCTOR, f"<= {BAR_CONSTRUCTOR}")
    return {"rounds": rows, **spreads}


def empty_files(root: Path) -> None:
    """SAMPLES empty files with names like ImageNet's, in CLASSES folders."""
    for number in tqdm(range(CLASSES), desc="files", leave=False):
        (root / f"n{number:08}").mkdir()
        for file in range(SAMPLES // CLASSES):
            os.mknod(f"{root}/n{number:08}/n{number:08}_{file}.JPEG")


def constructor_s(data: str, address: str) -> dict[str, float]:
    """Seconds of each constructor; in a process of its own.

    Args:
        data: an ImageFolder tree.
        address: of an agent that serves it.
    """
    quiet()
    warm_memory()
    started_s = time.perf_counter()
    dataset = ImageFolder(data, training_pipeline())
    image_folder_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    torch_loader(dataset, 0)
    torch_s = time.perf_counter() - started_s
    warm_memory()
    started_s = time.perf_counter()
    loader = our_loader(dataset, 0, agent=address)
    ours_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    iter(loader)
    iter_s = time.perf_counter() - started_s
    loader.close()
    row = {"image_folder_s": image_folder_s, "ours_s": ours_s, "torch_s": torch_s, "iter_s": iter_s}
    return {**row, "ratio": (image_folder_s + ours_s) / image_folder_s}


def warm_memory() -> None:
    """Write to some memory and free it: a virtual machine may have to ask its host for a page that is new to it."""
    np.empty(WARM_NBYTES, np.uint8)[::4096] = 1


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(data: Path) -> dict[str, Any]:
    """Sizes of both loaders after every epoch, and how they have grown; each loader in a process of its own."""
    found: dict[str, dict[str, Any]] = {}
    for name in ("torch", "ours"):
        epochs = alone(sizes_after_epochs, {"data": data, "name": name})
        found[name] = {"epochs": epochs, "grown_mb": {who: grown_mb(epochs, who) for who in ("main", "worker")}}
    for who, torchs_mb in found["torch"]["grown_mb"].items():
        ours_mb = found["ours"]["grown_mb"][who]
        figures = f"ours {ours_mb:+.1f} MB, torch {torchs_mb:+.1f} MB over {WINDOW} epochs"
        holds = ours_mb <= max(0.0, torchs_mb) + BAR_GROWTH_MB
        say(f"growth of the {who} process", figures, holds, f"<= {BAR_GROWTH_MB:g} MB more than torch's")
    return found


def grown_mb(epochs: list[dict[str, dict[str, float]]], who: str) -> float:
    """Growth of the private pages of a process in MB.

    Args:
        epochs: sizes after each.
        who: `main` or `worker`.
    """
    early, late = epochs[-2 * WINDOW : -WINDOW], epochs[-WINDOW:]
    return median(one[who]["uss_mb"] for one in late) - median(one[who]["uss_mb"] for one in early)


def sizes_after_epochs(data: str, name: str) -> list[dict[str, dict[str, float]]]:
    """Sizes of a loader's processes after each of its epochs; in a process of its own.

    Args:
        data: an ImageFolder tree.
        name: `torch` or `ours`.
    """
    quiet()
    dataset = folder(data)
    loader = torch_loader(dataset, 1) if name == "torch" else our_loader(dataset, 1)
    epochs = []
    for _ in tqdm(range(EPOCHS), desc=f"epochs of {name}", file=sys.stderr):
        samples_per_s(loader)
        epochs.append(sizes_mb())
    if isinstance(loader, OffloadingDataLoader):
        loader.close()
    return epochs


def sizes_mb() -> dict[str, dict[str, float]]:
    """RSS, PSS and USS of this process and of its one loader worker."""
    (worker,) = multiprocessing.active_children()
    sizes = {name: psutil.Process(pid).memory_full_info() for name, pid in (("main", None), ("worker", worker.pid))}
    return {
        name: {"rss_mb": size.rss / 1e6, "pss_mb": size.pss / 1e6, "uss_mb": size.uss / 1e6}
        for name, size in sizes.items()
    }


if __name__ == "__main__":
    sys.exit(main())
