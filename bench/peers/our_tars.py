"""Ours on the tar shards that webdataset has: an agent serves them, and only it sees them; the default policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.children import local_agent
from bench.loading import training_pipeline
from bench.peers.ours import OurClient, agent_of
from bench.peers.shards import location_of, write_shards
from bench.peers.systems import Settings
from sophon_loader import RemoteFiles


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """Write the shards, then serve them, without keys, as the peers do."""
    shards = Path(settings.folder)
    write_shards(settings.data, shards)
    bind = f"tcp://{settings.address}:{settings.port}"
    with local_agent(location_of(shards), "--insecure", "--index-folder", str(shards / "indexes"), bind=bind):
        yield


def open_client(settings: Settings) -> OurClient:
    """The loader of samples that the agent lists."""
    return OurClient(settings, RemoteFiles(agent_of(settings), training_pipeline()), "auto")
