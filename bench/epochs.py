"""Epochs of a loader in a process of its own: what they took, and what the loader says about them."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from bench.bed import Bed
from bench.children import LOADER_CORE, Child, Orders, agent_address, child
from bench.loading import OPS, folder, our_loader, quiet, torch_loader
from sophon_loader import OffloadingDataLoader, OffloadOptions
from sophon_loader.decide.policies.fastflow import FastFlow

FIRST_WARM = 1000
"""Epochs from this number on are not measured."""
FASTFLOW_STEPS = 20
"""Steps per trial of fastflow: its paper's 50 would take several epochs of these small datasets each."""
FASTFLOW = {one.name: one for one in (FastFlow(None, FASTFLOW_STEPS), FastFlow("every", FASTFLOW_STEPS))}
TORCH: dict[str, Any] = {
    "policy": "torch",
    "payload_bytes": None,
    "offloaded": 0,
    "choices": {},
    "agent_cpu_s": None,
    "agent_upkeep_s": None,
    "loader_cpu_s": None,
    "bottleneck": None,
    "predicted_seconds": None,
}
"""Values that torch's own DataLoader does not report; it reads the files itself."""


@dataclass(frozen=True)
class LoaderSettings:
    """Settings of a policy's loader process.

    Args:
        policy: a policy's name, or `torch` for torch's DataLoader on the files themselves.
        data: the ImageFolder tree.
        repeat: number of times that an epoch goes through it.
        batch_size: samples per batch.
        step_ms: length of the training step of a batch, a sleep.
        encodings: of every policy but auto, which may use all. With "paper", pictures are decoded by Pillow, as in the
            papers.
        profile: where the loader keeps its profile; None for nowhere.
    """

    policy: str
    data: str
    repeat: int = 1
    batch_size: int = 16
    step_ms: float = 0.0
    encodings: str = "paper"
    profile: str | None = None


# --- the loader's process ---------------------------------------------------------------------------------------------


@contextmanager
def loader_of_policy(address: str, **settings: Any) -> Iterator[Orders]:
    """A loader with one worker. Orders: `profile`, and `epoch` with its number.

    Args:
        address: of the agent.
        settings: those of `LoaderSettings`.
    """
    told = LoaderSettings(**settings)
    quiet()
    torch.manual_seed(0)
    dataset = folder(told.data, told.repeat)
    step_s = told.step_ms / 1000
    if told.policy == "torch":
        plain = torch_loader(dataset, 1, told.batch_size)
        yield orders_of(plain, lambda: digested_epoch(plain, step_s))
        return
    encodings = "auto" if told.policy == "auto" else told.encodings
    loader = our_loader(
        dataset,
        1,
        told.batch_size,
        agent=address,
        policy=FASTFLOW.get(told.policy, told.policy),
        encodings=encodings,
        profile=told.profile,
        options=OffloadOptions(fused=encodings != "paper"),
    )
    yield orders_of(loader, lambda: digested_epoch(loader, step_s), lambda _: time.sleep(step_s))
    loader.close()


def orders_of(
    loader: DataLoader[Any], measure: Callable[[], dict[str, Any]], step: Callable[[Any], None] | None = None
) -> Orders:
    """The orders of a loader's process.

    Args:
        loader: ours or torch's; `profile` does nothing with torch's.
        measure: runs an epoch.
        step: the training step of a batch while profiling; None for none.
    """
    ours = loader if isinstance(loader, OffloadingDataLoader) else None

    def profile(_: str) -> None:
        if ours is not None:
            ours.measure(step)

    def epoch(number: str) -> dict[str, Any]:
        if ours is not None:
            ours.set_epoch(int(number))
        torch.manual_seed(int(number))  # the same order of samples in every loader's epoch of this number
        return measure()

    return {"profile": profile, "epoch": epoch}


def digested_epoch(loader: DataLoader[Any], step_s: float) -> dict[str, Any]:
    """One epoch: the figures of a row, without those that only the other side of the link sees.

    Args:
        loader: any.
        step_s: length of the training step of a batch.
    """
    digest, waited_s, samples = 0, 0.0, 0
    started_s = asked_s = time.perf_counter()
    for images, labels in loader:
        waited_s += time.perf_counter() - asked_s
        digest = zlib.crc32(labels.numpy(), zlib.crc32(images.numpy(), digest))
        samples += len(labels)
        time.sleep(step_s)
        asked_s = time.perf_counter()
    seconds = time.perf_counter() - started_s
    row = {
        "seconds": seconds,
        "images_per_s": samples / seconds,
        "samples": samples,
        "gpu_idle_share": waited_s / seconds,
        "digest": f"{digest:08x}",
    }
    return {**row, **told_by(loader)}


def told_by(loader: DataLoader[Any]) -> dict[str, Any]:
    """The part of a row that the loader itself knows."""
    if not isinstance(loader, OffloadingDataLoader):
        return TORCH
    told = loader.report().as_dict()
    return {
        "policy": told["policy"],
        "epoch": told["epoch"],
        "payload_bytes": told["wire_bytes"],
        "offloaded": sum(n for name, n in told["choices"].items() if name != "file"),
        "choices": told["choices"],
        "agent_cpu_s": told["agent_cpu_s"],
        "agent_upkeep_s": told["agent_upkeep_s"],
        "loader_cpu_s": told["loader_cpu_s"],
        "bottleneck": told["bottleneck"],
        "predicted_seconds": told["predicted_seconds"],
        "plan_reason": told["plan_reason"],
    }


# --- the bench's process ----------------------------------------------------------------------------------------------


def policy_loader(bed: Bed, settings: LoaderSettings) -> AbstractContextManager[Child]:
    """The loader process of a policy, on the loader's host of a bed."""
    return child(bed.loader_host, LOADER_CORE, loader_of_policy, {"address": agent_address(bed), **asdict(settings)})


def warm_up(loader: Child, epochs: int) -> None:
    """Have a loader profile and settle.

    Args:
        loader: takes `profile` and `epoch`.
        epochs: how many are left out.
    """
    loader.order("profile")
    for number in range(epochs):
        loader.order(f"epoch {FIRST_WARM + number}")


def warm_epochs(settings: LoaderSettings) -> int:
    """Epochs of a policy to leave out: those of fastflow's trials; one for the others, in which rates settle."""
    trials = {"fastflow": 3, "fastflow-every": 2 + OPS}.get(settings.policy, 0)
    pictures = sum(1 for _ in Path(settings.data).glob("*/*")) * settings.repeat
    return math.ceil(trials * (FASTFLOW_STEPS + 15) * settings.batch_size / pictures) + 1


def measured_epoch(bed: Bed, loader: Child, number: int) -> dict[str, Any]:
    """One epoch of a loader process, with the bytes that crossed the link and the agent's CPU seconds meanwhile.

    Args:
        bed: on which it runs.
        loader: takes `epoch`.
        number: of the epoch.
    """
    bytes_before, cpu_before = bed.agent_host.interface_bytes(), bed.agent_host.cpu_seconds()
    row: dict[str, Any] = loader.order(f"epoch {number}")
    bytes_after, cpu_after = bed.agent_host.interface_bytes(), bed.agent_host.cpu_seconds()
    row["interface_bytes"] = None
    if bytes_before is not None and bytes_after is not None:
        row["interface_bytes"] = bytes_after.sent - bytes_before.sent
    if cpu_before is not None and cpu_after is not None:
        row["agent_host_cpu_s"] = cpu_after - cpu_before
    return row
