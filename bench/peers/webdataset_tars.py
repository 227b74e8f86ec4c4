"""webdataset: tar shards from nginx, read through curl as webdataset does by itself for http addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import webdataset
from torch.utils.data import DataLoader

from bench.loading import training_pipeline
from bench.peers.nginx import serving
from bench.peers.shards import SHARDS, write_shards
from bench.peers.systems import Client, Settings

BUFFER, INITIAL = 64, 16


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """Write the shards, then serve them."""
    write_shards(settings.data, Path(settings.folder))
    with serving(settings, Path(settings.folder)):
        yield


class WebdatasetClient(Client):
    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        shards = [f"{settings.url}/{shard:06d}.tar" for shard in range(SHARDS)]
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=SHARDS, detshuffle=True, seed=0)
            .compose(webdataset.detshuffle(BUFFER, INITIAL, seed=0))
            .decode("pilrgb")
            .to_tuple("jpg", "cls")
            .map_tuple(training_pipeline(), None)
            .batched(settings.batch_size)
        )
        self.loader: DataLoader[Any] = DataLoader(
            dataset, batch_size=None, num_workers=settings.workers, persistent_workers=True
        )

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        return self.loader


open_client = WebdatasetClient
