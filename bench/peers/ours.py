"""Ours, under the policy of the system's name; the agent is started as in bench.children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from bench.children import EXPORT
from bench.loading import folder, our_loader, quiet
from bench.peers.systems import Client, Settings


class OurClient(Client):
    """A loader with an agent.

    Args:
        settings: of the process.
        dataset: what it reads.
        policy: its policy.
    """

    def __init__(self, settings: Settings, dataset: Any, policy: str) -> None:
        quiet()
        torch.manual_seed(0)
        self.loader = our_loader(
            dataset,
            settings.workers,
            settings.batch_size,
            agent=agent_of(settings),
            policy=policy,
            encodings="auto" if policy == "auto" else "paper",
        )

    def prepare(self) -> None:
        self.loader.measure()

    def batches(self, epoch: int) -> Iterable[tuple[Any, Any]]:
        self.loader.set_epoch(epoch)
        torch.manual_seed(epoch)
        return self.loader

    def close(self) -> None:
        self.loader.close()


def agent_of(settings: Settings) -> str:
    """The address of the agent."""
    return f"tcp://{settings.address}:{settings.port}/{EXPORT}"


def open_client(settings: Settings) -> OurClient:
    """The loader of a mounted folder."""
    return OurClient(settings, folder(settings.data), settings.system)
