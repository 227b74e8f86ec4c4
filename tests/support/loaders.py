"""What the tests of the whole loader share: pictures on disk, agents as real processes, digests of epochs.

Everything that a spawned loader worker must unpickle stands at the top level of this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from sophon_loader import LocalAgent, OffloadingDataLoader, OffloadOptions
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.announcement import announced
from sophon_loader.wire.messages import Sample
from storage_agent.status import ask_status

EXPORT = "pictures"
POLICIES = ("no-off", "all-off", "resize-off")
QUICK = OffloadOptions(connect_timeout_s=20.0, heartbeat_s=0.3, dead_after_s=1.5, resend_after_s=5.0, window=16)
"""Time-outs that keep a test of a fault short; the agent must answer pings while it starts, and it does."""
LOCAL = LocalAgent(workers=1)
_START_S = 60.0


# --- pictures -------------------------------------------------------------------------------------------------


def picture(width: int, height: int, seed: int) -> Image.Image:
    """An RGB image that compresses like a photo: soft shapes, an edge or two, a little noise."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    soft = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    soft = soft + rng.integers(-9, 10, soft.shape, dtype=np.int16)
    soft[height // 3 :, width // 2 :] += int(rng.integers(-60, 60))
    return Image.fromarray(np.clip(soft, 0, 255).astype(np.uint8))


def make_tree(root: Path, files: int = 48, classes: int = 4) -> Path:
    """An ImageFolder tree of JPEG files of many sizes, with a nested folder and a PNG among them."""
    rng = random.Random(files)
    for number in range(files):
        folder = root / f"class_{number % classes}"
        if number % 11 == 10:
            folder /= "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        image = picture(rng.randrange(40, 240), rng.randrange(40, 240), number)
        if number == 5:
            image.save(folder / f"{number:03}.png")
        elif number == 7:
            image.convert("L").save(folder / f"{number:03}.jpg")
        else:
            image.save(folder / f"{number:03}.jpg", quality=rng.randrange(70, 96), progressive=number % 9 == 8)
    return root


def train_transform(px: int = 48) -> Any:
    """Every draw of an ordinary training pipeline, at a small size."""
    return v1.Compose(
        [
            v1.RandomResizedCrop(px),
            v1.RandomHorizontalFlip(),
            v1.ColorJitter(0.4, 0.4, 0.4),
            v1.ToTensor(),
            v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        ]
    )


def eval_transform(px: int = 48) -> Any:
    """A pipeline that draws nothing."""
    return v1.Compose([v1.Resize(px + 8), v1.CenterCrop(px), v1.ToTensor()])


def folder(root: Path, transform: Any = None, **arguments: Any) -> ImageFolder:
    """The ImageFolder of a tree, with the training transform unless told otherwise."""
    return ImageFolder(str(root), train_transform() if transform is None else transform, **arguments)


# --- agents ---------------------------------------------------------------------------------------------------


def with_modules(folder: Path | None) -> dict[str, str]:
    """The environment of a Python that finds the modules of `folder` before all others."""
    found = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
    return {**os.environ, **(found if folder else {})}


class Agent:
    """A `sophon-agent serve` process; it dies with the test process, whatever happens.

    Args:
        modules: a folder whose modules its Python finds before all others.
    """

    def __init__(
        self, exports: dict[str, Path], port: int = 0, *arguments: str, workers: int = 1, modules: Path | None = None
    ) -> None:
        command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin", "--workers", str(workers)]
        for name, path in exports.items():
            command += ["--export", f"{name}={path}"]
        self._command, self.arguments = command, arguments
        self.modules = modules
        self._port = port
        self.start()

    def start(self) -> None:
        """Start it, again on the same port if it has run before, and wait until it takes requests."""
        deadline_s = time.monotonic() + _START_S
        while True:
            self.process = subprocess.Popen(
                [*self._command, *self.arguments, "--bind", f"tcp://127.0.0.1:{self._port}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=with_modules(self.modules),
            )
            try:
                self.endpoint = announced(self.process).endpoint
                break
            except AgentUnreachable:  # the port is not free again yet
                self._reap()
                assert time.monotonic() < deadline_s, "the agent does not start"
        self._port = int(self.endpoint.rsplit(":", 1)[1])

    def address(self, export: str = EXPORT) -> str:
        """Where a loader finds an export (`name` or `name/folder`)."""
        return f"{self.endpoint}/{export}"

    def status(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """The agent's numbers about itself; fails when it does not answer."""
        return ask_status(self.endpoint, timeout_s)

    def kill(self) -> None:
        """End it as a power cut would: the broker and its workers (which end when the broker does)."""
        self.process.kill()
        self._reap()

    def pause(self) -> None:
        """Stop the broker in its tracks; connections stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Undo `pause`."""
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, politely first."""
        if self.process.poll() is None:
            self.go_on()
            self.process.terminate()
        self._reap()

    def _reap(self) -> None:
        try:
            self.process.wait(20.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def agent_for(*arguments: str, workers: int = 1, modules: Path | None = None, **exports: Path) -> Iterator[Agent]:
    """An agent for the duration of a block."""
    agent = Agent(exports, 0, *arguments, workers=workers, modules=modules)
    try:
        yield agent
    finally:
        agent.close()


@contextlib.contextmanager
def loaders_of(root: Path, agent: Agent, **defaults: Any) -> Iterator[Callable[..., OffloadingDataLoader[Any]]]:
    """Builds loaders over a tree, at an agent that serves it unless told otherwise, and closes them at the end."""
    made: list[OffloadingDataLoader[Any]] = []

    def build(dataset: Any = None, **arguments: Any) -> OffloadingDataLoader[Any]:
        usual = {"agent": agent.address(), "policy": "resize-off", "options": QUICK, **defaults}
        made.append(OffloadingDataLoader(folder(root) if dataset is None else dataset, **{**usual, **arguments}))
        return made[-1]

    yield build
    for loader in made:
        loader.close()


def alive(agent: Agent) -> bool:
    """Whether the agent answers."""
    try:
        return bool(agent.status()["instance"])
    except AgentUnreachable:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for a condition of another process."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {timeout_s:g} s"
        time.sleep(0.02)


def sample_message(number: int) -> Sample:
    """An agent's answer to the request of that id."""
    return Sample(
        id=number,
        cut=1,
        encoding="pixels",
        meta={},
        file_nbytes=10,
        op_s=[0.0, 0.0, 0.0],
        upkeep_s=0.0,
        queued_s=0.0,
        note="",
    )


# --- digests --------------------------------------------------------------------------------------------------


def digest_of(value: Any) -> str:
    """A short hash of a sample's part: class, dtype, shape and every bit."""
    if isinstance(value, torch.Tensor):
        head, body = f"{value.dtype}{tuple(value.shape)}", value.contiguous().numpy().tobytes()
    elif isinstance(value, Image.Image):
        head, body = f"{value.mode}{value.size}", value.tobytes()
    else:
        head, body = "", repr(value).encode()
    return hashlib.blake2b(f"{type(value).__name__}{head}".encode() + body, digest_size=8).hexdigest()


def samples_of(batches: Iterable[Any]) -> list[tuple[str, Any]]:
    """(digest of the image, target) of every sample of collated batches, in order."""
    found: list[tuple[str, Any]] = []
    for images, targets in batches:
        found += [(digest_of(image), target) for image, target in zip(images, targets.tolist(), strict=True)]
    return found


def run_epoch(loader: Any) -> list[tuple[str, Any]]:
    """`samples_of` one epoch of a loader, which is closed afterwards."""
    try:
        return samples_of(loader)
    finally:
        loader.close()


# --- what spawned workers must find by name -------------------------------------------------------------------


class SeenIndex:
    """A sampler that keeps what it has handed out."""

    def __init__(self, order: Iterable[int]) -> None:
        self.order = list(order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class PlainPictures(torch.utils.data.Dataset[Any]):
    """The OffloadableDataset protocol, and nothing that torchvision has."""

    def __init__(self, root: Path, transform: Any) -> None:
        self.root = str(root)
        self.transform = transform
        self.keys = sorted(str(path.relative_to(root)) for path in root.rglob("*.jpg"))

    def __len__(self) -> int:
        return len(self.keys)

    def key(self, index: int) -> str:
        return self.keys[index]

    def target(self, index: int) -> int:
        return len(self.keys[index]) + 1000 * index

    def __getitem__(self, index: int) -> Any:
        with Image.open(os.path.join(self.root, self.keys[index])) as image:
            return self.transform(image.convert("RGB")), self.target(index)


def noisy_target(target: int) -> float:
    """A target transform that draws from all three generators."""
    return target + random.random() + float(np.random.random()) + float(torch.rand(()))


def times_two(image: torch.Tensor) -> torch.Tensor:
    """An op that no registry knows."""
    return image * 2


def as_list(samples: list[Any]) -> list[Any]:
    """A collate function that keeps the samples apart."""
    return samples
