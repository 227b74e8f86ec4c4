"""Cases of bench.live that need no link: memory per sample, and a local agent where there is nothing to gain."""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import time
from argparse import Namespace
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from torchvision.datasets import ImageFolder

from bench import record
from bench.children import ChildFailed, alone, local_agent
from bench.loading import quiet, torch_loader, training_pipeline
from bench.streams import listed
from sophon_loader import OffloadingDataLoader
from sophon_loader.datasets.taking_apart import offloadable

FEW = 10_000
"""Samples of the small data set, whose memory is taken off: what is left is per sample."""
SIZES = {"ImageFolder": 1_280_000, "made-up index": 100_000_000}
KINDS = ("index", "no-off", "auto")
"""Holders of a data set: nothing but its index, or a loader."""
TOO_LARGE = {("made-up index", "no-off")}
"""Combinations with a table per sample, of some gigabytes for this many."""
SHORT_ROUNDS = 3
"""Number of rounds of short cases, which take seconds."""
MEMORY_ROUNDS = 3
MEMORY_RUNS = MEMORY_ROUNDS * 2 * (len(SIZES) * len(KINDS) - len(TOO_LARGE))
DRAWN = 3000
"""Samples of an epoch in which memory is measured: enough for some seconds of a plan that lives."""
BAR_BYTES = 0.5
"""Per sample: nothing per sample would take less than a byte, and medians scatter by half a megabyte and more."""
BAR_BATCH_S, BAR_EPOCH_S = 0.3, 0.5
LOCAL_WORKERS = 2
LOCAL_SAMPLES = 700


class MadeUp:
    """A data set with an index of any size over the same few files.

    Args:
        data: an ImageFolder tree.
        samples: how many it has.
    """

    def __init__(self, data: str, samples: int) -> None:
        folder = ImageFolder(data)
        self.root = data
        self.transform = training_pipeline()
        self._keys = [str(Path(path).relative_to(data)) for path, _ in folder.samples]
        self._targets = folder.targets
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def key(self, index: int) -> str:
        """The path of a sample's file below `root`."""
        return self._keys[index % len(self._keys)]

    def target(self, index: int) -> int:
        """Its label."""
        return int(self._targets[index % len(self._targets)])

    def __getitem__(self, index: int) -> Any:
        path = f"{self.root}/{self.key(index)}"
        return self.transform(ImageFolder(self.root).loader(path)), self.target(index)


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(options: Namespace, progress: Any) -> dict[str, Any]:
    """Bytes per sample of each kind of loader beyond the index, for each data set.

    Args:
        options: of the command line.
        progress: updated after every run.
    """
    rows: list[dict[str, Any]] = []
    with local_agent(options.data) as (address, _):
        for number, (dataset, samples), kind in itertools.product(range(MEMORY_ROUNDS), SIZES.items(), KINDS):
            if (dataset, kind) in TOO_LARGE:
                continue
            row = {"number": number, "dataset": dataset, "kind": kind}
            for name, size in (("few", FEW), ("many", samples)):
                settings = {"data": options.data, "address": address, "dataset": dataset, "samples": size, "kind": kind}
                try:
                    row[name] = alone(held_mb, settings)
                except ChildFailed as error:
                    row["failed"] = str(error)
                progress.update()
            rows.append(row)
    found = {dataset: bytes_per_sample(rows, dataset) for dataset in SIZES}
    holds = all(one["auto"] is not None and one["auto"] <= BAR_BYTES for one in found.values())
    return {"beyond_index": found, "rounds": rows, "holds": holds}


def bytes_per_sample(rows: list[dict[str, Any]], dataset: str) -> dict[str, float | None]:
    """Beyond the index, by kind of loader; None for one that failed or was left out.

    Args:
        rows: sizes in MB with `few` and `many` samples.
        dataset: which of them.
    """
    more = {}
    for kind in KINDS:
        mine = [row for row in rows if row["dataset"] == dataset and row["kind"] == kind]
        if mine and all("failed" not in row for row in mine):
            more[kind] = median(row["many"] - row["few"] for row in mine)
    samples = SIZES[dataset] - FEW
    return {
        kind: (more[kind] - more["index"]) * 1e6 / samples if {kind, "index"} <= set(more) else None
        for kind in KINDS
        if kind != "index"
    }


def held_mb(data: str, address: str, dataset: str, samples: int, kind: str) -> float:
    """Memory in MB of a process in the middle of an epoch, see `own_mb`.

    Args:
        data: an ImageFolder tree.
        address: of an agent that serves it.
        dataset: one of `SIZES`.
        samples: of it.
        kind: one of `KINDS`.
    """
    quiet()
    many: Any = listed(data, samples) if dataset == "ImageFolder" else MadeUp(data, samples)
    if kind == "index":
        kept = offloadable(many)
        assert len(kept) == samples
        return own_mb()
    drawn = random.Random(0)
    order = [drawn.randrange(samples) for _ in range(DRAWN)]
    # One by one: a batch of 16 is 10 MB, and those under way would dominate. In this process: any loader's worker that
    # is forked gets its own page of the index for each sample that it reads.
    loader: Any = OffloadingDataLoader(many, 1, sampler=order, agent=address, policy=kind)
    batches = iter(loader)
    for _ in itertools.islice(batches, DRAWN - 64):
        pass
    held = own_mb()
    for _ in batches:
        pass
    loader.close()
    return held


def own_mb() -> float:
    """Memory in MB that this process shares with no other, without what it has freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # 20 MB of 1.28 million samples' lists, which a loader would use again
    return float(psutil.Process().memory_full_info().uss) / 1e6


# --- a local agent ----------------------------------------------------------------------------------------------------


def local(options: Namespace, progress: Any) -> dict[str, Any]:
    """The first batch and the first epoch with `agent="local"`, against torch's DataLoader, in turns.

    Args:
        options: of the command line.
        progress: updated after every round.
    """
    rows = []
    for number in range(SHORT_ROUNDS):
        settings = {"data": options.data, "batch_size": options.batch_size}
        names = record.in_turns(("torch", "auto"), number)
        rows.append({name: alone(started_s, {**settings, "policy": name}) for name in names})
        progress.update()
    found: dict[str, Any] = {}
    for what in ("first_batch_s", "first_epoch_s"):
        found[what] = {name: record.spread([row[name][what] for row in rows]) for name in ("torch", "auto")}
        found[f"{what}_later"] = median(row["auto"][what] - row["torch"][what] for row in rows)
    holds = found["first_batch_s_later"] <= BAR_BATCH_S and found["first_epoch_s_later"] <= BAR_EPOCH_S
    return {**found, "rounds": rows, "holds": holds}


def started_s(data: str, policy: str, batch_size: int) -> dict[str, float]:
    """Seconds from before the constructor to the first batch, and to the end of the first epoch.

    Args:
        data: an ImageFolder tree.
        policy: of a loader with a local agent, or `torch`.
        batch_size: samples per batch.
    """
    quiet()
    dataset = listed(data, LOCAL_SAMPLES)
    started = time.perf_counter()
    if policy == "torch":
        loader: Any = torch_loader(dataset, LOCAL_WORKERS, batch_size)
    else:
        workers: dict[str, Any] = {"num_workers": LOCAL_WORKERS, "persistent_workers": True}
        loader = OffloadingDataLoader(dataset, batch_size, shuffle=True, **workers, agent="local", policy=policy)
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - started
    for _ in batches:
        pass
    whole_s = time.perf_counter() - started
    if isinstance(loader, OffloadingDataLoader):
        loader.close()
    return {"first_batch_s": first_s, "first_epoch_s": whole_s}
