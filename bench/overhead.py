"""What the loader costs where there is nothing to gain: against torch's DataLoader on the same files.

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

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from tqdm import tqdm

from bench import record
from bench.loading import folder, our_loader, quiet, torch_loader, training_pipeline
from sophon_loader import OffloadingDataLoader
from sophon_loader.wire.announcement import announced

BAR_THROUGHPUT = 0.98
BAR_FIRST_BATCH_S = 0.3
BAR_CONSTRUCTOR = 1.2
BAR_GROWTH_MB = 4.0
POLICIES = ("no-off", "auto")
GPU_BOUND = 1.5
"""Length of the training step, in torch's own times per batch."""
SAMPLES, CLASSES = 1_280_000, 1000
WARM_NBYTES = 1 << 30
EPOCHS, WINDOW = 60, 20


def main() -> int:
    options = parser().parse_args()
    quiet()
    options.data = (options.data or record.default_data()).resolve()
    if options.role:
        print(json.dumps(ROLES[options.role](options)))
        return 0
    found = {name: SECTIONS[name](options) for name in options.only}
    record.write(options.json, "bench.overhead", found)
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="an ImageFolder tree; default: the shared imagenet pictures")
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), choices=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=4, help="how often the pictures are gone through per epoch")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2], metavar="N", help="of throughput")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--role", choices=list(ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--loader", choices=("torch", "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    return parser


def say(what: str, figures: str, holds: bool, bar: str) -> None:
    """One line of the output."""
    print(f"{what}: {figures} (bar {bar}: {'ok' if holds else 'below'})", flush=True)


# --- throughput -------------------------------------------------------------------------------------------------------


def throughput(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ratios per number of workers, policy, and what limits."""
    dataset = folder(options.data, options.repeat)
    found = []
    for workers in options.workers:
        loaders: dict[str, DataLoader[Any]] = {"torch": torch_loader(dataset, workers)}
        loaders |= {policy: our_loader(dataset, workers, policy=policy) for policy in POLICIES}
        loaders["auto"].profile()  # type: ignore[attr-defined]
        samples_per_s(loaders["torch"], 0.0)  # start workers, fill the page cache
        batch_s = loaders["torch"].batch_size / samples_per_s(loaders["torch"], 0.0)  # type: ignore[operator]
        for limit, step_s in (("nothing", 0.0), ("gpu", GPU_BOUND * batch_s)):
            rounds = compared(loaders, step_s, options.rounds, f"{workers} worker(s), {limit}")
            for policy in POLICIES:
                ratio = record.spread([row[policy] / row["torch"] for row in rounds])
                what = f"{policy} / torch, {workers} worker(s), limited by {limit}"
                figures = f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})"
                say(what, figures, ratio["median"] >= BAR_THROUGHPUT, f">= {BAR_THROUGHPUT}")
                told = loaders[policy].report().as_dict()  # type: ignore[attr-defined]
                row = {"policy": policy, "workers": workers, "limit": limit, "step_s": step_s, "ratio": ratio}
                row |= {"rounds": [{"torch": one["torch"], "ours": one[policy]} for one in rounds]}
                found.append({**row, "bottleneck": told["bottleneck"], "choices": told["choices"]})
        for policy in POLICIES:
            loaders[policy].close()  # type: ignore[attr-defined]
    return found


def compared(loaders: dict[str, DataLoader[Any]], step_s: float, rounds: int, title: str) -> list[dict[str, float]]:
    """Samples per second of each loader, round by round, after an epoch each to settle."""
    for loader in loaders.values():
        samples_per_s(loader, step_s)
    return [
        {name: samples_per_s(loaders[name], step_s) for name in record.in_turns(list(loaders), number)}
        for number in tqdm(range(rounds), desc=title, file=sys.stderr)
    ]


def samples_per_s(loader: DataLoader[Any], step_s: float) -> float:
    """Throughput of one epoch with a training step of that length."""
    started_s, samples = time.perf_counter(), 0
    for _, labels in loader:
        samples += len(labels)
        time.sleep(step_s)
    return samples / (time.perf_counter() - started_s)


# --- first batch ------------------------------------------------------------------------------------------------------


def first_batch(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds to the first batch of both, in turns."""
    rows = []
    with running_agent(options.data) as address:
        for number in tqdm(range(-1, options.rounds), desc="first batch", file=sys.stderr):
            row = {}
            for name in record.in_turns(["torch", "ours"], number):
                row[name] = of_process("first-batch", options, "--loader", name, "--address", address)["seconds"]
            rows += [row] if number >= 0 else []  # the first pair fills caches
    spreads = {name: record.spread([row[name] for row in rows]) for name in rows[0]}
    later_s = spreads["ours"]["median"] - spreads["torch"]["median"]
    figures = (
        f"torch {spreads['torch']['median']:.3f} s, ours {spreads['ours']['median']:.3f} s, later by {later_s:.3f} s"
    )
    say("first batch after the constructor", figures, later_s <= BAR_FIRST_BATCH_S, f"<= {BAR_FIRST_BATCH_S} s")
    return {"rounds": rows, **spreads, "later_s": later_s}


def time_first_batch(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    dataset = folder(options.data)
    started_s = time.perf_counter()
    loader = torch_loader(dataset, 1) if options.loader == "torch" else our_loader(dataset, 1, agent=options.address)
    next(iter(loader))
    return {"seconds": time.perf_counter() - started_s}


# --- constructor ------------------------------------------------------------------------------------------------------


def constructor(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of ImageFolder, of our constructor and of the first iter()."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        empty_files(root)
        with running_agent(root) as address:
            rows = [
                of_process("constructor", options, "--data", str(root), "--address", address)
                for _ in tqdm(range(options.rounds), desc="constructor", file=sys.stderr)
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


def time_constructor(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    warm_memory()
    started_s = time.perf_counter()
    dataset = ImageFolder(str(options.data), training_pipeline())
    image_folder_s = time.perf_counter() - started_s
    started_s = time.perf_counter()
    torch_loader(dataset, 0)
    torch_s = time.perf_counter() - started_s
    warm_memory()
    started_s = time.perf_counter()
    loader = our_loader(dataset, 0, agent=options.address)
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


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Sizes of both loaders after every epoch, and how they have grown; each loader in a process of its own."""
    found = {}
    for name in ("torch", "ours"):
        epochs = of_process("memory", options, "--loader", name)["epochs"]
        found[name] = {"epochs": epochs, "grown_mb": {who: grown_mb(epochs, who) for who in ("main", "worker")}}
    for who, torchs_mb in found["torch"]["grown_mb"].items():
        ours_mb = found["ours"]["grown_mb"][who]
        figures = f"ours {ours_mb:+.1f} MB, torch {torchs_mb:+.1f} MB over {WINDOW} epochs"
        holds = ours_mb <= max(0.0, torchs_mb) + BAR_GROWTH_MB
        say(f"growth of the {who} process", figures, holds, f"<= {BAR_GROWTH_MB:g} MB more than torch's")
    return found


def grown_mb(epochs: list[dict[str, dict[str, float]]], who: str) -> float:
    """Growth of the private pages of a process."""
    early, late = epochs[-2 * WINDOW : -WINDOW], epochs[-WINDOW:]
    return median(one[who]["uss_mb"] for one in late) - median(one[who]["uss_mb"] for one in early)


def grow(options: argparse.Namespace) -> dict[str, Any]:
    """In a process of its own."""
    dataset = folder(options.data)
    loader = torch_loader(dataset, 1) if options.loader == "torch" else our_loader(dataset, 1)
    epochs = []
    for _ in tqdm(range(EPOCHS), desc=f"epochs of {options.loader}", file=sys.stderr):
        samples_per_s(loader, 0.0)
        epochs.append(sizes_mb())
    if isinstance(loader, OffloadingDataLoader):
        loader.close()
    return {"epochs": epochs}


def sizes_mb() -> dict[str, dict[str, float]]:
    """RSS, PSS and USS of this process and of its one loader worker."""
    (worker,) = multiprocessing.active_children()
    sizes = {name: psutil.Process(pid).memory_full_info() for name, pid in (("main", None), ("worker", worker.pid))}
    return {
        name: {"rss_mb": size.rss / 1e6, "pss_mb": size.pss / 1e6, "uss_mb": size.uss / 1e6}
        for name, size in sizes.items()
    }


# --- processes --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running_agent(data: Path) -> Iterator[str]:
    """The address of an agent with one worker, over loopback."""
    command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin", "--export", f"bench={data}"]
    command += ["--bind", "tcp://127.0.0.1:0", "--workers", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None
        yield announced(agent).endpoint + "/bench"
        agent.stdin.close()


def of_process(role: str, options: argparse.Namespace, *arguments: str) -> dict[str, Any]:
    """What a role of this bench measures in a fresh process; later arguments win."""
    command = [sys.executable, "-m", "bench.overhead", "--data", str(options.data), "--role", role, *arguments]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    row: dict[str, Any] = json.loads(said.splitlines()[-1])
    return row


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "throughput": throughput,
    "first-batch": first_batch,
    "constructor": constructor,
    "memory": memory,
}
ROLES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "first-batch": time_first_batch,
    "constructor": time_constructor,
    "memory": grow,
}


if __name__ == "__main__":
    sys.exit(main())
