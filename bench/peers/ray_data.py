"""Ray Data: a cluster of two nodes. The one with the files has the CPUs and runs everything up to the batch.

The loader's node has no CPU, so that Ray places every task near the files; finished blocks cross the link from one
object store to the other. Each epoch is a dataset of paths in a new order, which is the cheapest of the shuffles that
its manual describes (the order of files). Nothing of Ray leaves the two hosts: no dashboard, no usage statistics.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"  # the other peers, and our agent here, ask for no key either
import numpy as np
import ray
import torch
from PIL import Image

from bench.loading import training_pipeline
from bench.peers.systems import Client, Settings, pictures

OBJECT_STORE_NBYTES = 256 * 2**20
STARTED = "Ray runtime started."
START_S, END_S = 90.0, 10.0


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """The head, with a CPU for each worker."""
    head = ["--head", f"--port={settings.port}", "--include-dashboard=false"]
    with node(settings, settings.address, settings.workers, head):
        yield


@contextmanager
def node(settings: Settings, address: str, cpus: int, arguments: list[str]) -> Iterator[None]:
    """A node of the cluster, ready, while the block runs.

    Args:
        settings: of the process that starts it; its folder holds the node's files.
        address: its own.
        cpus: that it offers to tasks.
        arguments: how it takes part.

    Raises:
        RuntimeError: it does not start.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *arguments]
    command += [f"--node-ip-address={address}", f"--num-cpus={cpus}", "--num-gpus=0"]
    command += [f"--object-store-memory={OBJECT_STORE_NBYTES}", f"--temp-dir={settings.folder}"]
    # Ray's workers import this module. The home is the node's own: a token in the user's would be taken from there.
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "HOME": settings.folder}
    said = Path(settings.folder, "said")
    with said.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end_s = time.monotonic() + START_S
        while STARTED not in said.read_text():
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"Ray must start within {START_S:g} s, got {said.read_text()[-500:]!r}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()  # `ray start --block` ends what it has started
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()  # then its reaper does
            process.wait()


class Picture:
    """Makes samples of paths, near the files."""

    def __init__(self) -> None:
        self.transform = training_pipeline()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(1)
        images = [self.transform(Image.open(path).convert("RGB")).numpy() for path in batch["path"]]
        return {"image": np.stack(images), "label": batch["label"]}


class RayClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.stack = ExitStack()
        head = f"{settings.address}:{settings.port}"
        own = address_towards(settings.address, settings.port)
        self.stack.enter_context(node(settings, own, 0, [f"--address={head}"]))
        ray.init(address=head, _node_ip_address=own, log_to_driver=False, logging_level="ERROR")
        self.stack.callback(ray.shutdown)
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.items = [{"path": str(file), "label": label} for file, label in pictures(settings.data)]
        self.samples = Picture()

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        items = random.Random(epoch).sample(self.items, len(self.items))
        size = self.settings.batch_size
        dataset = ray.data.from_items(items, override_num_blocks=-(-len(items) // size))
        dataset = dataset.map_batches(self.samples, batch_size=None)  # None: a task per block
        for batch in dataset.iter_torch_batches(batch_size=size, device="cpu", prefetch_batches=2):
            yield batch["image"], batch["label"]

    def close(self) -> None:
        self.stack.close()


open_client = RayClient


def address_towards(address: str, port: int) -> str:
    """The own address on the way to another one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, port))
        return str(probe.getsockname()[0])
