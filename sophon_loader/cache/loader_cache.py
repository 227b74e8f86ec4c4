"""Makes the cache of a loader: decides if its dataset can be cached, and which share of it."""

from __future__ import annotations

import contextlib
import os
import re

from sophon_loader.cache.cache import Cache
from sophon_loader.cache.stuck import STUCK_S
from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable, Source
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.errors import AgentError, ConfigError, warn_user
from sophon_loader.wire.messages import Sizes

_LOOKED_AT = 256
"""Number of files whose sizes are sampled. Every rank and job samples the same ones, and so caches the same files."""
_STUCK = (
    f"a read in {{folder}} has taken more than {STUCK_S:g} s, so from now on files are read where they come from, and "
    "not in the cache; a sample that still waits for that disk is had when it answers: if it does not, end the job, "
    "and name a folder on another disk"
)
_EXCHANGED = (
    "{folder} is not a folder of this user alone any more, so from now on files are read where they come from, and not "
    "in the cache; see who may write to the folder above it, remove {folder}, and start anew with cache= in a folder "
    "into which no other user may write"
)
_UNCHANGING = re.compile(r"[a-z0-9]+://.+ \(index [0-9a-f]{32}\)", re.DOTALL)
"""Form in which an agent reports the content of archives and of a far store's listing: place and digest of the
index."""


def cache_of(data: Offloadable, options: OffloadOptions) -> Cache | None:
    """Make the cache that a user has asked for; None if not asked for.

    Args:
        data: the dataset.
        options: of the loader.

    Raises:
        ConfigError: files are neither mounted here nor in archives or a far store, so outdated copies would go
            unnoticed.
        AgentError: no agent reports what it serves.

    Warns:
        OffloadWarning: the folder cannot be used; the loader runs without a cache.
    """
    if options.cache is None or options.cache_gb is None:
        return None
    for source in data.sources:
        if source.root is not None and not os.path.isdir(source.root):
            raise _refused(source.root)
    far = [source for source in data.sources if source.root is None]
    contents = {content_of(source, options): source for source in far}
    if len(contents) > 1:
        raise ConfigError(
            "a cache must be of files of one export, or of mounted ones, got "
            f"{' and '.join(str(source.address) for source in contents.values())}; leave out cache= and cache_gb="
        )
    cache = Cache(options.cache, int(options.cache_gb * 1e9), _nbytes(data, options), next(iter(contents), ""))
    if cache.why_not:
        warn_user(f"No file is kept on this host: {cache.why_not}.")
    return cache


def see_reads(cache: Cache) -> None:
    """Warn if a read of the cache hangs, or if its folder was replaced.

    Warns:
        OffloadWarning: the cache is left alone from now on; once per loader.
    """
    if cache.told:
        return
    if cache.reads.look():
        cache.told = True
        warn_user(f"A disk hangs: {_STUCK.format(folder=cache.folder)}.")
    elif cache.reads.exchanged:
        cache.told = True
        warn_user(f"The cache is left alone: {_EXCHANGED.format(folder=cache.folder)}.")


def note_on(cache: Cache | None, policy: Policy | PricingPolicy) -> tuple[str, ...]:
    """Return the notes for a report on a cache that is left alone, or that the policy does not plan with.

    Args:
        cache: of the loader; None for none.
        policy: of the loader; no-off offloads nothing, and needs no note.
    """
    if cache is not None and cache.reads.left_alone:
        return ((_STUCK if cache.reads.stuck else _EXCHANGED).format(folder=cache.folder),)
    if cache is None or cache.why_not or isinstance(policy, PricingPolicy) or policy.name == "no-off":
        return ()
    return (
        f"{policy.name} does not know which files are in the cache on this host: it plans as if all had to be sent, "
        "and only samples that it plans as files are read there; policy='auto' plans with the cache",
    )


def content_of(source: Source, options: OffloadOptions) -> str:
    """Ask agents for the content of an export that does not change while they serve it.

    Args:
        source: a source without mounted files.
        options: the time-outs.

    Raises:
        ConfigError: the content may change, or the agents are not known yet.
        AgentError: no agent answers.
    """
    if source.roster is not None or source.address is None:
        raise ConfigError(
            f"a cache of files that are not mounted must be of agents that are named one by one, got {source.roster}; "
            "give the dataset a list of addresses, or leave out cache= and cache_gb="
        )
    root = _asked(source, [], options).root
    if not _UNCHANGING.fullmatch(root):
        raise _refused(str(source.address))
    return root


def _refused(where: str) -> ConfigError:
    return ConfigError(
        f"a cache must be of mounted files, or of archives or a far store, got {where}, which is not a folder on this "
        "host: an agent does not say when a file of a folder was changed, so that old copies would be served for ever; "
        "mount the folder here and name it in the dataset, or leave out cache= and cache_gb="
    )


def _asked(source: Source, keys: list[str], options: OffloadOptions) -> Sizes:
    """Ask a source's agents about files, one after the other, until one answers.

    Raises:
        AgentError: none answers.
    """
    *others, last = source.replicas or [address for address in [source.address] if address is not None]
    for address in others:
        with contextlib.suppress(AgentError):
            return _asked_one(address, keys, options)
    return _asked_one(last, keys, options)


def _asked_one(address: Address, keys: list[str], options: OffloadOptions) -> Sizes:
    connection = Connection(address, 1, options)
    try:
        return connection.sizes([address.key(key) for key in keys], options.dead_after_s)
    finally:
        connection.close()


def _nbytes(data: Offloadable, options: OffloadOptions) -> int:
    """Estimate the bytes of all files from a sample that is spread over the whole set."""
    locations, count = Locations(data, None), len(data)
    looked_at, sizes = min(_LOOKED_AT, count), []
    far: dict[int, list[str]] = {}
    for number in range(looked_at):
        index = number * count // looked_at
        path = locations.path_here(index)
        if path is None:
            source, row = data.locate(index)
            far.setdefault(source, []).append(data.sources[source].keys[row])
            continue
        with contextlib.suppress(OSError):  # what is missing says so when it is read
            sizes.append(os.stat(path).st_size)
    for source, keys in far.items():
        sizes += [nbytes for nbytes in _asked(data.sources[source], keys, options).nbytes if nbytes >= 0]
    return count * sum(sizes) // max(1, len(sizes))
