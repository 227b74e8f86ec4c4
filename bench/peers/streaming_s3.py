"""mosaicml-streaming: MDS shards in a bucket of moto's server. The local cache is emptied after each epoch."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

from bench.loading import training_pipeline
from bench.peers.systems import Client, Settings, pictures

BUCKET = "pictures"
SHARD_NBYTES = 4 << 20
"""A shard must be there before its first sample can be read."""
SHUFFLE_BLOCK = 64
"""Samples. The default, 262 144, would have the whole of these small sets downloaded before the first batch."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """Write the shards, start moto, upload them."""
    import boto3
    from moto.server import ThreadedMotoServer

    os.environ.update(CREDENTIALS)
    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=settings.folder, columns=columns, size_limit=SHARD_NBYTES) as writer:
        for file, label in pictures(settings.data):
            writer.write({"image": file.read_bytes(), "label": label})
    moto = ThreadedMotoServer(ip_address=settings.address, port=settings.port)
    moto.start()
    bucket = boto3.resource("s3", endpoint_url=settings.url).Bucket(BUCKET)
    bucket.create()
    for path in Path(settings.folder).iterdir():
        bucket.upload_file(str(path), path.name)
    try:
        yield
    finally:
        moto.stop()


class Pictures(StreamingDataset):  # type: ignore[misc]
    """Decoded and transformed samples of a stream of file bytes."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.transform = training_pipeline()

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        return self.transform(Image.open(io.BytesIO(sample["image"])).convert("RGB")), sample["label"]


class StreamingClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        os.environ.update(CREDENTIALS, S3_ENDPOINT_URL=settings.url)
        self.dataset = Pictures(
            remote=f"s3://{BUCKET}",
            local=settings.folder,
            batch_size=settings.batch_size,
            shuffle=True,
            shuffle_seed=0,
            shuffle_block_size=SHUFFLE_BLOCK,
            num_canonical_nodes=1,
        )
        self.loader: DataLoader[Any] = DataLoader(
            self.dataset, settings.batch_size, num_workers=settings.workers, persistent_workers=True
        )

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        yield from self.loader
        for shard in range(self.dataset.num_shards):
            self.dataset.evict_shard(shard)


open_client = StreamingClient
