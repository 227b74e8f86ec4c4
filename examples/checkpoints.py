"""A training loop that may be killed at any moment, and goes on where its last checkpoint was taken.

    python examples/checkpoints.py /mnt/imagenet/train run.pt --agent tcp://fileserver:5555/imagenet

Every `--every` steps the state of model, optimiser and loader is copied, and a thread writes the copy to the disk while
the training goes on (as CheckFreq does). A file that is written gets its name when it is whole. Started again, with
other workers maybe, the loop gives the same weights, bit by bit, as one that was never killed.
"""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from sophon_loader import OffloadingDataLoader


class Checkpoints:
    """The newest checkpoint of a run, written beside the training; one at a time.

    Args:
        path: its file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def save(self, state: dict[str, Any]) -> None:
        """Write a copy of the state; waits for the one before, if that is still being written."""
        self.wait()
        self._writing = self._thread.submit(self._write, copy.deepcopy(state))

    def wait(self) -> None:
        """Wait until what was saved is on the disk.

        Raises:
            OSError: it cannot be written.
        """
        if self._writing is not None:
            self._writing.result()

    def _write(self, state: dict[str, Any]) -> None:
        unfinished = self._path.with_suffix(".unfinished")
        with open(unfinished, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, self._path)

    def load(self) -> dict[str, Any] | None:
        """The newest one; None if there is none."""
        return torch.load(self._path) if self._path.exists() else None


def train(arguments: Sequence[str] | None = None, told: Callable[[int, float], object] = print) -> nn.Module:
    """The whole run, or what is left of it.

    Args:
        arguments: of the command; those of this process by default.
        told: called with number and loss of every step.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="A folder of pictures, as ImageFolder takes it.")
    parser.add_argument("checkpoint", type=Path, help="The file to write, and to go on from if it is there.")
    parser.add_argument("--agent", help="Address of the agent's export: tcp://host:port/export (default: no agent).")
    parser.add_argument("--epochs", type=int, default=2, help="Epochs to train (default: %(default)s).")
    parser.add_argument(
        "--every", type=int, default=100, help="Steps from one checkpoint to the next (default: %(default)s)."
    )
    parser.add_argument("--batch", type=int, default=32, help="Samples per batch (default: %(default)s).")
    parser.add_argument("--workers", type=int, default=2, help="Worker processes of the loader (default: %(default)s).")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    dataset = ImageFolder(options.data, transforms.Compose([transforms.RandomResizedCrop(64), transforms.ToTensor()]))
    loader: OffloadingDataLoader[Any] = OffloadingDataLoader(
        dataset, options.batch, shuffle=True, num_workers=options.workers, agent=options.agent
    )
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Dropout(), nn.Linear(3 * 16 * 16, len(dataset.classes)))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    checkpoints = Checkpoints(options.checkpoint)
    epoch = step = 0
    if (kept := checkpoints.load()) is not None:
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        loader.load_state_dict(kept["loader"])
        torch.set_rng_state(kept["random"])
        epoch, step = kept["epoch"], kept["step"]
    while epoch < options.epochs:
        for images, labels in loader:  # after load_state_dict: the rest of the epoch
            loss = nn.functional.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            step += 1
            if step % options.every == 0:
                checkpoints.save(
                    {
                        "model": model.state_dict(),
                        "optimiser": optimiser.state_dict(),
                        "loader": loader.state_dict(),
                        "random": torch.get_rng_state(),
                        "epoch": epoch,
                        "step": step,
                    }
                )
            told(step, loss.item())
        epoch += 1
    checkpoints.wait()
    loader.close()
    return model


if __name__ == "__main__":
    train()
