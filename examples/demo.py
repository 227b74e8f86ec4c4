"""`make demo`: train a small network over a slow wire under each policy, and compare.

    python -m examples.demo --data /path/to/an/ImageFolder --link-mbit 100

Starts a storage agent that paces its replies to the given rate. Every policy trains on the same batches, bit for bit:
the last column is a digest of all of them.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torchvision import datasets, transforms
from tqdm import tqdm

from examples.pictures import make_pictures
from sophon_loader import OffloadingDataLoader
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.wire.announcement import announced

POLICIES = ("no-off", "all-off", "resize-off", "fastflow", "sophon", "auto")
SHARED = Path(__file__).parents[2] / "shared" / "data" / "imagenet"
MORE_EPOCHS = 3
"""Most that a policy gets beyond `--epochs` while it tries plans out; they are not in the digest."""
MADE = Path(__file__).parents[1] / "demo-data"
NEXT = """
Each line trained on the same batches, bit for bit: the last column is a digest of them. `no-off` sends whole files,
as a mounted folder would; `auto` is the default, and decides for each image how much is done beside the files.

What to do next, on your own data:
  on the file server   .venv/bin/sophon-agent serve --export data=/path/to/an/ImageFolder --bind tcp://0.0.0.0:5555
  in your program      OffloadingDataLoader(dataset, ..., agent="tcp://fileserver:5555/data")  in place of DataLoader
README.md says how to install both and how your program gets the server's key; docs/guide.md answers the rest."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="An ImageFolder tree (default: shared or made pictures).")
    parser.add_argument(
        "--link-mbit", type=float, default=100.0, metavar="N", help="Rate of the wire in Mbit/s (default: 100)."
    )
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="Epochs under each policy (default: 3).")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N", help="Samples per batch (default: 16).")
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="Worker processes of the loader (default: 1)."
    )
    parser.add_argument(
        "--policies",
        nargs="+",
        default=list(POLICIES),
        metavar="NAME",
        help="Policies to compare (default: {}).".format(" ".join(POLICIES)),
    )
    options = parser.parse_args()
    data = (options.data or default_data()).resolve()
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )
    dataset = datasets.ImageFolder(str(data), transform)
    print(f"{len(dataset)} pictures of {data}, a wire of {options.link_mbit:g} Mbit/s, {options.epochs} epochs each")
    table = Table("policy", "epoch s", "images/s", "MB on wire", "offloaded", "all batches")
    with agent(data, options.link_mbit) as process:
        address = announced(process).endpoint + "/demo"
        for number, policy in enumerate(options.policies, 1):
            tqdm.write(f"{number} of {len(options.policies)}: policy {policy}")
            table.add_row(policy, *run(policy, address, dataset, options))
        process.stdin.close()  # type: ignore[union-attr]
    Console().print(table)
    print(NEXT)


def run(policy: str, address: str, dataset: Any, options: argparse.Namespace) -> list[str]:
    """Train under one policy; the cells of its row, from its last epoch, in which it tries out no plan."""
    torch.manual_seed(0)
    loader = OffloadingDataLoader(
        dataset,
        batch_size=options.batch_size,
        shuffle=True,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        agent=address,
        policy=FastFlow(trial_steps=8) if policy == "fastflow" else policy,  # short trials for a short demo
    )
    model = nn.Sequential(
        nn.AvgPool2d(4), nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(len(dataset.classes))
    )
    optimiser: torch.optim.Optimizer | None = None
    digest = hashlib.sha256()
    epoch, tries = 0, False
    while epoch < options.epochs or (tries and epoch < options.epochs + MORE_EPOCHS):
        tries = is_trial(loader)
        started = time.perf_counter()
        # Without a terminal tqdm writes nothing: a log would have a line for every refresh.
        for images, labels in tqdm(loader, desc=f"{policy}, epoch {epoch}", leave=False, disable=None):
            if epoch < options.epochs:
                digest.update(images.numpy())
                digest.update(labels.numpy())
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser = optimiser or torch.optim.SGD(model.parameters(), lr=0.01)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        seconds = time.perf_counter() - started
        epoch += 1
    told = loader.report().as_dict()
    loader.close()
    offloaded = 1 - told["choices"].get("file", 0) / max(1, told["samples"])
    return [
        f"{seconds:.1f}",
        f"{told['samples'] / seconds:.0f}",
        f"{told['wire_bytes'] / 1e6:.1f}",
        f"{100 * offloaded:.0f} %",
        digest.hexdigest()[:12],
    ]


def is_trial(loader: OffloadingDataLoader[Any]) -> bool:
    """Whether the policy, FastFlow that is, still tries plans out: an epoch that begins so is none of its choice."""
    return str(loader.report().as_dict()["plan_reason"]).startswith(("trial of", "check of"))


def agent(data: Path, link_mbit: float) -> subprocess.Popen[str]:
    """A storage agent on this host that paces its replies."""
    command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin", "--export", f"demo={data}"]
    command += ["--bind", "tcp://127.0.0.1:0", "--limit-mbit", str(link_mbit), "--log-level", "warning"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def default_data() -> Path:
    """Real pictures if they lie beside the checkout, else made ones."""
    if SHARED.is_dir():
        return SHARED
    return MADE if MADE.is_dir() else make_pictures(MADE, 300)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # leave the cores to decoding
    torch.set_num_threads(1)
    main()
