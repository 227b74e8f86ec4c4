"""Ours on a bucket: an agent near the store reads it, and loaders see the agent alone; the default policy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bench.children import local_agent
from bench.loading import training_pipeline
from bench.peers import seaweed
from bench.peers.ours import OurClient, agent_of
from bench.peers.systems import Settings
from sophon_loader import RemoteImageFolder


@contextmanager
def server(settings: Settings) -> Iterator[None]:
    """Fill the bucket, then serve it, without keys, as the peers do."""
    with seaweed.serving(settings.data, settings.address, settings.port + 1) as url:
        os.environ.update(seaweed.environment(url))
        bind = f"tcp://{settings.address}:{settings.port}"
        with local_agent(
            f"s3://{seaweed.BUCKET}", "--insecure", "--index-folder", f"{settings.folder}/indexes", bind=bind
        ):
            yield


def open_client(settings: Settings) -> OurClient:
    """The loader of samples that the agent lists."""
    return OurClient(settings, RemoteImageFolder(agent_of(settings), training_pipeline()), "auto")
