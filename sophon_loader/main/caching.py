"""The cache of a loader: whether its dataset can have one."""

from __future__ import annotations

import os

from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import ConfigError, warn_user
from sophon_loader.routes.cache import Cache


def cache_of(data: Offloadable, options: OffloadOptions) -> Cache | None:
    """The cache that a user has asked for; None for none.

    Args:
        data: the dataset.
        options: of the loader.

    Raises:
        ConfigError: files are not mounted here, so that nobody could tell when a copy is out of date.

    Warns:
        OffloadWarning: there can be no cache where the user wants it; the loader does without.
    """
    if options.cache is None or options.cache_gb is None:
        return None
    for source in data.sources:
        if source.root is None or not os.path.isdir(source.root):
            where = source.address if source.root is None else source.root
            raise ConfigError(
                f"a cache must be of mounted files, got {where}, which is not a folder on this host: an agent does not "
                "say when a file was changed, so that old copies would be served for ever; mount the folder here and "
                "name it in the dataset, or leave out cache= and cache_gb="
            )
    cache = Cache(options.cache, int(options.cache_gb * 1e9), len(data))
    if cache.why_not:
        warn_user(f"No file is kept on this host: {cache.why_not}.")
    return cache
