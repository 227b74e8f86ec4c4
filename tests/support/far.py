"""A store of a bucket as an agent's start has it, without an agent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage_agent.stores.far import Far
from storage_agent.stores.fetcher import Fetcher


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
