"""torch's DataLoader over HTTP: a Dataset that fetches the files of a batch from nginx, four at a time."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench.loading import torch_loader, training_pipeline
from bench.peers.nginx import serving
from bench.peers.systems import Client, Settings, pictures


def server(settings: Settings) -> AbstractContextManager[None]:
    return serving(settings, Path(settings.data))


class HttpPictures(Dataset[Any]):
    """Pictures by HTTP. While one is decoded, the next ones of the batch are on their way."""

    def __init__(self, settings: Settings) -> None:
        self.address, self.port = settings.address, settings.port
        self.samples = [(f"/{file.parent.name}/{file.name}", label) for file, label in pictures(settings.data)]
        self.transform = training_pipeline()
        self.pool: ThreadPoolExecutor | None = None  # made in the worker
        self.mine = threading.local()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.pool = self.pool or ThreadPoolExecutor(4)
        bodies = self.pool.map(self.fetch, indices)
        return [
            (self.transform(Image.open(io.BytesIO(body)).convert("RGB")), self.samples[index][1])
            for index, body in zip(indices, bodies, strict=True)
        ]

    def fetch(self, index: int) -> bytes:
        if not hasattr(self.mine, "connection"):
            self.mine.connection = HTTPConnection(self.address, self.port)
        self.mine.connection.request("GET", self.samples[index][0])
        return bytes(self.mine.connection.getresponse().read())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "pool": None, "mine": None}


class HttpClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.loader: DataLoader[Any] = torch_loader(HttpPictures(settings), settings.workers, settings.batch_size)

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        torch.manual_seed(epoch)
        return self.loader


open_client = HttpClient
