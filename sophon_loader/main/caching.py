"""The cache of a loader: whether its dataset can have one, and how large a share of it is kept."""

from __future__ import annotations

import contextlib
import os

from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.errors import ConfigError, warn_user
from sophon_loader.routes.cache import Cache

_LOOKED_AT = 256
"""Files whose sizes stand for those of all: every rank and job looks at the same, and so keeps the same files."""


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
    cache = Cache(options.cache, int(options.cache_gb * 1e9), _nbytes(data))
    if cache.why_not:
        warn_user(f"No file is kept on this host: {cache.why_not}.")
    return cache


def note_on(cache: Cache | None, policy: Policy | PricingPolicy) -> tuple[str, ...]:
    """What a report says of a policy that plans as if there was no cache.

    Args:
        cache: of the loader; None for none.
        policy: of the loader; no-off, which offloads nothing, has no need to know.
    """
    if cache is None or cache.why_not or isinstance(policy, PricingPolicy) or policy.name == "no-off":
        return ()
    return (
        f"{policy.name} does not know which files are in the cache on this host: it plans as if all had to be sent, "
        "and only samples that it plans as files are read there; policy='auto' plans with the cache",
    )


def _nbytes(data: Offloadable) -> int:
    """Bytes of all files, by the sizes of some, which are spread over the whole."""
    locations, count = Locations(data, None), len(data)
    looked_at, sizes = min(_LOOKED_AT, count), []
    for number in range(looked_at):
        path = locations.path_here(number * count // looked_at)
        with contextlib.suppress(OSError):  # what is missing says so when it is read
            sizes += [] if path is None else [os.stat(path).st_size]
    return count * sum(sizes) // max(1, len(sizes))
