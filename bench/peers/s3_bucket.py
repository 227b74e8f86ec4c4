"""torch's DataLoader on a bucket across the link, by the two clients that users take for that; SeaweedFS serves it."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench.loading import torch_loader, training_pipeline
from bench.peers import seaweed
from bench.peers.systems import Client, Settings, pictures


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """Fill the bucket, and keep its server."""
    with seaweed.serving(settings.data, settings.address, settings.port + 1):
        yield


class BucketClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        url = f"http://{settings.address}:{settings.port + 1}"
        made = {"s3-torch": of_connector, "s3-fsspec": FsspecPictures}[settings.system]
        self.loader: DataLoader[Any] = torch_loader(made(settings, url), settings.workers, settings.batch_size)

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        torch.manual_seed(epoch)
        return self.loader


open_client = BucketClient


# --- s3torchconnector: its own dataset, as its page shows ---------------------------------------------------------


class ConnectorSample:
    """Makes a sample of an object, in a worker."""

    def __init__(self, settings: Settings) -> None:
        self.labels = {f"{file.parent.name}/{file.name}": label for file, label in pictures(settings.data)}
        self.transform = training_pipeline()

    def __call__(self, found: Any) -> tuple[Any, int]:
        return self.transform(Image.open(io.BytesIO(found.read())).convert("RGB")), self.labels[found.key]


def of_connector(settings: Settings, url: str) -> Any:
    """The dataset of a bucket."""
    from s3torchconnector import S3ClientConfig, S3MapDataset

    return S3MapDataset.from_prefix(
        f"s3://{seaweed.BUCKET}/",
        region="us-east-1",
        endpoint=url,
        transform=ConnectorSample(settings),
        s3client_config=S3ClientConfig(unsigned=True, force_path_style=True),
    )


# --- s3fs: the objects of a batch at once ---------------------------------------------------------------------------


class FsspecPictures(Dataset[Any]):
    """Pictures by fsspec."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.url = url
        self.samples = [
            (f"{seaweed.BUCKET}/{file.parent.name}/{file.name}", label) for file, label in pictures(settings.data)
        ]
        self.transform = training_pipeline()
        self.store: Any = None  # made in the worker: it has a thread

    def __len__(self) -> int:
        return len(self.samples)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.store is None:
            import s3fs

            self.store = s3fs.S3FileSystem(anon=True, endpoint_url=self.url)
        keys = [self.samples[index][0] for index in indices]
        bodies = self.store.cat(keys)
        return [
            (self.transform(Image.open(io.BytesIO(bodies[key])).convert("RGB")), self.samples[index][1])
            for index, key in zip(indices, keys, strict=True)
        ]
