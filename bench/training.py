"""Gain on a real GPU: networks are trained from files behind a paced link, and without a limit.

    python -m bench.training --data PATH --json training.json
    python -m bench.training --device cpu --models resnet18 --links 50 --batch-size 16 --repeat 1 --rounds 1

The host's cores are dealt out in halves: the agent's processes run on one, the training and its loader workers on the
other. Over a paced link (the agent's `--limit-mbit`, over loopback) all files come from the agent. Without a limit the
files lie on this host, `torch` is torch's DataLoader, and ours are given the same agent. The training is a network of
torchvision's, in channels-last and bfloat16 autocast, with SGD, random weights and the true labels. Our loaders have
`tail="device"` and `device_prefetch=2`; torch's pins its memory, and copies without waiting. The loaders take turns,
epoch by epoch, after one epoch each to warm up.

`alone`: images per second of the same step on one batch that stays on the device, so what the network could take.
`busy`: images per second over `alone`. `nvml`: mean of the driver's own utilisation, sampled ten times a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
import torchvision
from torch.utils.data import DataLoader
from tqdm import tqdm

from bench import arguments, record
from bench.children import local_agent
from bench.loading import folder, our_loader
from sophon_loader.device.tail import device_of

Step = Callable[[torch.Tensor, torch.Tensor], None]
MODELS = ("resnet50", "resnet152")
LINKS_MBIT = (500.0, 0.0)
POLICIES, POLICIES_WITHOUT_LIMIT = ("no-off", "sophon", "auto"), ("no-off", "auto")
ALONE_STEPS = 20
SAMPLE_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per figure, write the results."""
    options = arguments.parsed(parser(), argv)
    device = torch.device(options.device) if options.device else device_of("device")
    if device is None or (device.type == "cpu" and not options.device):
        print("left out: this host has no accelerator; --device cpu trains on the CPU")
        return 0
    torch.backends.cudnn.benchmark = True
    agent_cores, loader_cores = halves()
    cases = []
    for link, model in product(options.links, options.models):
        with agent_on(agent_cores, loader_cores, options, link) as address:
            cases.append(measured(options, device, model, link, address, len(loader_cores)))
    settings = {"device": name_of(device), "cores": len(agent_cores), "batch_size": options.batch_size}
    record.write(options.output, {"settings": {**settings, "data": options.data.name}, "cases": cases})
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.training", __doc__, pictures=True)
    add = parser.add_argument
    add(
        "--device",
        default="",
        help="Where the network trains (default: this host's accelerator; without one nothing is measured).",
    )
    add(
        "--models",
        nargs="+",
        default=list(MODELS),
        action=arguments.Distinct,
        type=network,
        help="Networks that are trained: functions of torchvision.models.",
    )
    links: dict[str, Any] = {"type": arguments.rate, "action": arguments.Distinct, "metavar": "MBIT"}
    add("--links", nargs="+", default=list(LINKS_MBIT), help="Rates of the wire in Mbit/s; 0 for no limit.", **links)
    add("--batch-size", type=arguments.count(), default=256)
    add("--repeat", type=arguments.count(), default=30)
    add("--rounds", type=arguments.count(), default=3)
    return parser


def network(text: str) -> str:
    """The name of a network of torchvision's."""
    if text not in torchvision.models.list_models():
        raise argparse.ArgumentTypeError(
            f"must be a network of torchvision.models, got {text}; torchvision.models.list_models() names them"
        )
    return text


def halves() -> tuple[set[int], set[int]]:
    """The cores of this process: the agent's, and those of the training."""
    cores = sorted(os.sched_getaffinity(0))
    middle = max(1, len(cores) // 2)
    return set(cores[:middle]), set(cores[middle:]) or set(cores)


@contextmanager
def agent_on(agent_cores: set[int], loader_cores: set[int], options: Any, link_mbit: float) -> Iterator[str]:
    """An agent on its cores, while the block runs on the other ones.

    Yields:
        Its address for loaders.
    """
    paced = ("--limit-mbit", f"{link_mbit:g}") if link_mbit else ()
    os.sched_setaffinity(0, agent_cores)  # what is started inherits them
    with local_agent(options.data, "--workers", str(len(agent_cores)), *paced) as (address, _):
        os.sched_setaffinity(0, loader_cores)
        yield address
    os.sched_setaffinity(0, agent_cores | loader_cores)


def measured(
    options: Any, device: torch.device, model: str, link_mbit: float, address: str, workers: int
) -> dict[str, Any]:
    """One network over one link: images per second by policy.

    Args:
        options: the command line.
        device: what trains.
        model: name of the network.
        link_mbit: of the link; 0 for no limit.
        address: of the agent.
        workers: loader workers.
    """
    step = training_step(model, device)
    alone = alone_rate(step, device, options.batch_size)
    loaders = made_loaders(options, link_mbit, address, workers)
    rows: list[dict[str, Any]] = []
    names = list(loaders)
    for name in names:
        trained(loaders[name], step, device)
    for number in tqdm(range(options.rounds), desc=f"{model} {link_mbit:g}", file=sys.stderr):
        rows.extend({"round": number, "policy": name, **trained(loaders[name], step, device)}
                    for name in record.in_turns(names, number))  # fmt: skip
    for loader in loaders.values():
        if hasattr(loader, "close"):
            loader.close()
    first = names[0]
    base = {row["round"]: row["images_s"] for row in rows if row["policy"] == first}
    summary = {}
    for name in names:
        mine = [row for row in rows if row["policy"] == name]
        summary[name] = {
            "images_s": record.spread([row["images_s"] for row in mine]),
            "ratio": record.spread([row["images_s"] / base[row["round"]] for row in mine]),
            "busy": record.spread([row["images_s"] / alone for row in mine]),
            "nvml": record.spread([row["nvml"] for row in mine]),
        }
        ratio, busy = summary[name]["ratio"], summary[name]["busy"]
        print(f"{model}, {f'{link_mbit:g} Mbit/s' if link_mbit else 'no limit'}, {name}: {ratio['median']:.2f} "
              f"({ratio['min']:.2f} to {ratio['max']:.2f}) of {first}, {busy['median']:.0%} of the {alone:.0f} "
              f"images/s of the step alone", flush=True)  # fmt: skip
    return {"model": model, "link_mbit": link_mbit, "alone": alone, "workers": workers, "rounds": rows,
            "summary": summary}  # fmt: skip


def made_loaders(options: Any, link_mbit: float, address: str, workers: int) -> dict[str, Any]:
    """The loaders that are compared; ratios are over the first one.

    Args:
        options: the command line.
        link_mbit: of the link; 0 for no limit.
        address: of the agent.
        workers: loader workers of each.
    """
    dataset = folder(options.data, options.repeat)
    common = {"agent": address, "tail": "device", "device_prefetch": 2, "pin_memory": True}
    policies = POLICIES if link_mbit else POLICIES_WITHOUT_LIMIT
    ours = {name: our_loader(dataset, workers, options.batch_size, policy=name, **common) for name in policies}
    if link_mbit:
        return ours
    settings: dict[str, Any] = {"num_workers": workers, "persistent_workers": True, "pin_memory": True}
    return {"torch": DataLoader(dataset, options.batch_size, shuffle=True, **settings), **ours}


# --- the training -----------------------------------------------------------------------------------------------------


def training_step(model: str, device: torch.device) -> Step:
    """A step of a network with random weights.

    Args:
        model: a function of torchvision.models.
        device: where it runs.
    """
    network = getattr(torchvision.models, model)().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels.to(device, non_blocking=True))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def alone_rate(step: Step, device: torch.device, batch_size: int) -> float:
    """Images per second on one batch that stays on the device.

    Args:
        step: of the training.
        device: where it runs.
        batch_size: images per batch.
    """
    images = torch.randn(batch_size, 3, 224, 224, device=device)
    labels = torch.zeros(batch_size, dtype=torch.int64, device=device)
    steps = ALONE_STEPS if device.type != "cpu" else 1
    for number in range(2 * steps):
        if number == steps:
            finished(device)
            started_s = time.perf_counter()
        step(images, labels)
    finished(device)
    return batch_size * steps / (time.perf_counter() - started_s)


def trained(loader: Any, step: Step, device: torch.device) -> dict[str, float]:
    """An epoch of training: images per second, and the driver's utilisation.

    Args:
        loader: any.
        step: of the training.
        device: where it runs.
    """
    samples, started_s = 0, time.perf_counter()
    with utilisation(device) as sampled:
        for images, labels in loader:
            step(images, labels)
            samples += len(labels)
        finished(device)
    return {"images_s": samples / (time.perf_counter() - started_s), "nvml": sum(sampled) / max(1, len(sampled))}


@contextmanager
def utilisation(device: torch.device) -> Iterator[list[float]]:
    """Shares of time, from 0 to 1, in which the GPU was busy by its driver, while the block runs; none of a CPU."""
    sampled: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            sampled.append(torch.cuda.utilization(device) / 100)

    thread = threading.Thread(target=sample, name="utilisation")
    if device.type == "cuda":
        thread.start()
    try:
        yield sampled
    finally:
        over.set()
        if device.type == "cuda":
            thread.join()


def finished(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


def name_of(device: torch.device) -> str:
    """The device as its driver calls it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


if __name__ == "__main__":
    sys.exit(main())
