"""A store of a bucket as an agent's start has it, without an agent; and what an agent before one must give."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sophon_loader import OffloadingDataLoader, RemoteImageFolder
from storage_agent.stores.buckets.far import Far
from storage_agent.stores.buckets.fetcher import Fetcher
from tests.support.agents import Agent
from tests.support.loaders import QUICK, samples_of
from tests.support.pictures import folder, train_transform


@contextmanager
def far_store(location: str, indexes: Path) -> Iterator[Far]:
    """The store, once it is checked, under the export's name `d`.

    Args:
        location: `s3://bucket` or `s3://bucket/prefix`.
        indexes: the folder of indexes.
    """
    fetcher = Fetcher()
    environment = dict(os.environ)
    try:
        store = Far("d", location, 1 << 28, index_folder=indexes, fetcher=fetcher)
        store.check()
        os.environ.update(environment)  # the fetcher has taken credentials out
        yield store
    finally:
        os.environ.update(environment)
        fetcher.close()


def see_same_samples(root: Path, agent: Agent, policy: str) -> None:
    """An epoch over the export `d` of an agent is one over a folder without an agent.

    Args:
        root: of the folder.
        agent: serves the same files.
        policy: of both loaders.
    """
    remote = RemoteImageFolder(agent.address("d"), train_transform(), options=QUICK)
    here, there = (
        OffloadingDataLoader(data, 5, agent=address, policy=policy, seed=3, options=QUICK)
        for data, address in ((folder(root), None), (remote, agent.address("d")))
    )
    assert samples_of(there) == samples_of(here)
    here.close()
    there.close()
