"""Ours, under the policy of the system's name; the agent is started as in bench.children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from bench.loading import folder, our_loader, quiet
from bench.peers.systems import Client, Settings


class OurClient(Client):
    def __init__(self, settings: Settings) -> None:
        quiet()
        torch.manual_seed(0)
        self.loader = our_loader(
            folder(settings.data),
            settings.workers,
            settings.batch_size,
            agent=f"tcp://{settings.address}:{settings.port}/bench",
            policy=settings.system,
            encodings="auto" if settings.system == "auto" else "paper",
        )

    def prepare(self) -> None:
        self.loader.measure()

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        self.loader.set_epoch(epoch)
        torch.manual_seed(epoch)
        return self.loader

    def close(self) -> None:
        self.loader.close()


open_client = OurClient
