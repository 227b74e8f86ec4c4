"""rpcdataloader: remote workers hold the dataset, and whole batches of finished samples cross the wire."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rpcdataloader
import torch
from torchvision.datasets import ImageFolder

from bench.loading import training_pipeline
from bench.peers.systems import Client, Settings


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """One process per worker, with torchvision imported already; ready when each has answered a call."""
    workers = [
        multiprocessing.Process(target=rpcdataloader.run_worker, args=(settings.address, port), daemon=True)
        for port in _ports(settings)
    ]
    for worker in workers:
        worker.start()
    for port in _ports(settings):
        rpcdataloader.rpc_async(f"{settings.address}:{port}", len, [[]]).wait()
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()


def _ports(settings: Settings) -> range:
    return range(settings.port, settings.port + settings.workers)


class RpcClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.workers = [f"{settings.address}:{port}" for port in _ports(settings)]
        dataset = rpcdataloader.RPCDataset(self.workers, ImageFolder, root=settings.data, transform=training_pipeline())
        self.loader = rpcdataloader.RPCDataloader(dataset, settings.batch_size, shuffle=True)

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        torch.manual_seed(epoch)
        for number, worker in enumerate(self.workers):
            rpcdataloader.rpc_async(worker, rpcdataloader.set_random_seeds, args=[epoch, number]).wait()
        yield from self.loader


open_client = RpcClient
