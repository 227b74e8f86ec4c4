"""Gain of `tail="device"`: images per second on this host's device, and bytes per image from the workers.

    python -m bench.tail --json tail.json

Both loaders read the same ImageFolder through a local agent under `no-off` without any wire limit, and bring the images
to the accelerator, if there is one (pinned), else leave them on the CPU. They take turns, epoch by epoch, and which one
goes first changes every round; a round's figure is the ratio of their throughputs. The bytes are those of a batch as
torch's worker queue hands it over.

On the CPU the ops only move from the workers to the training process, which has that much less time for the model; what
is saved is that they run on a whole batch at once, and that floats need not be copied through shared memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from tqdm import tqdm

from bench import arguments, record
from bench.loading import folder, our_loader, quiet
from sophon_loader.device.tail import device_of


def delivered(loader: Any, device: torch.device) -> float:
    """Images per second of one epoch, until they are on the device.

    Args:
        loader: any.
        device: where its images go.
    """
    started = time.perf_counter()
    samples = 0
    for images, labels in loader:
        images.to(device, non_blocking=True)
        samples += len(labels)
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return samples / (time.perf_counter() - started)


def nbytes_per_image(loader: Any) -> float:
    """Return the number of bytes per image of one batch when it comes from a worker."""
    images = next(iter(loader)._batches)[0]
    return float(images.nbytes / len(images))


def compared(dataset: Any, workers: int, rounds: int, device: torch.device) -> dict[str, Any]:
    """Both loaders, round by round.

    Args:
        dataset: what both read.
        workers: worker processes of each.
        rounds: epochs of each that count.
        device: where the images go.
    """
    pin = {"pin_memory": True} if device.type != "cpu" else {}
    loaders = {tail: our_loader(dataset, workers, policy="no-off", tail=tail, **pin) for tail in ("loader", "device")}
    nbytes = {tail: nbytes_per_image(loader) for tail, loader in loaders.items()}
    for loader in loaders.values():  # fill the page cache
        delivered(loader, device)
    rows: list[dict[str, float]] = []
    for number in tqdm(range(rounds), desc=f"{workers} worker(s)", file=sys.stderr):
        order = list(loaders) if number % 2 == 0 else list(reversed(loaders))
        rates = {tail: delivered(loaders[tail], device) for tail in order}
        rows.append({**rates, "ratio": rates["device"] / rates["loader"]})
    for loader in loaders.values():
        loader.close()
    summary = {name: record.spread([row[name] for row in rows]) for name in ("loader", "device", "ratio")}
    return {"workers": workers, "device": str(device), "bytes_per_image": nbytes, "rounds": rows, "summary": summary}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a line per number of workers, write the results."""
    options = arguments.parsed(parser(), argv)
    quiet()
    device = device_of("device")
    assert device is not None
    dataset = folder(options.data, options.repeat)
    results = [compared(dataset, workers, options.rounds, device) for workers in options.workers]
    for result in results:
        ratio, nbytes = result["summary"]["ratio"], result["bytes_per_image"]
        print(f"tail on {device} / with the samples, {result['workers']} worker(s): {ratio['median']:.3f} "
              f"({ratio['min']:.3f} to {ratio['max']:.3f} over {options.rounds} rounds), "
              f"{nbytes['device']:.0f} instead of {nbytes['loader']:.0f} bytes per image")  # fmt: skip
    record.write(options.output, results)
    return 0


def parser() -> arguments.Parser:
    """The command line."""
    parser = arguments.Parser("bench.tail", __doc__, pictures=True)
    add = parser.add_argument
    add("--rounds", type=arguments.count(), default=7)
    add("--repeat", type=arguments.count(), default=3)
    workers: dict[str, Any] = {"type": arguments.count(), "action": arguments.Distinct, "metavar": "N"}
    add("--workers", nargs="+", default=[1, 2], **workers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
