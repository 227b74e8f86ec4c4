"""The agreement with an agent before the first epoch: handshake, pipelines, and a look at a few files."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.locations import Locations
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.encodings.catalogue import encoding_names, usable
from sophon_loader.encodings.estimate import UsedAt
from sophon_loader.encodings.registry import used_at
from sophon_loader.errors import ConfigError
from sophon_loader.pipeline.chain import Chain
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.pipeline.registration import registration_of
from sophon_loader.pipeline.software import DECODERS, software, unlike
from sophon_loader.wire.messages import NO_FILE, OUTSIDE, Welcome

_PROBED = 8
"""How many files are compared by size before the first epoch."""
_BUILD_S = 60.0
"""Building ops for the first time takes the agent's workers as long as importing torchvision does."""


@dataclass(frozen=True)
class Agreement:
    """What came of the handshake.

    Args:
        terms: for the workers.
        locations: where the files lie, in the export and here.
        reach: per source, the last stage that the agent reaches.
        agent_cores: cores that its workers may use.
        encodings: that may be used, see `encodings.catalogue.usable`.
        notes: what a user should know.
        agent: which agent this is, in a profile's file: its address, or "local" for the loader's own, which listens on
            another port every time.
    """

    terms: Terms
    locations: Locations
    reach: tuple[int, ...]
    agent_cores: float
    encodings: tuple[str, ...]
    notes: tuple[str, ...]
    agent: str


def agree(
    data: Offloadable,
    chains: Sequence[Chain],
    address: Address,
    options: OffloadOptions,
    seed: Seed,
    allowed: Collection[str],
) -> Agreement:
    """Shake hands with the agent at `address`, register the pipelines, and see that it serves this dataset.

    Args:
        allowed: names of the encodings that the user allows.

    Raises:
        AgentUnreachable, UnknownExport, VersionMismatch, ConfigError: it cannot serve this dataset.
    """
    locations = Locations(data, address)
    registrations = tuple(registration_of(chain, software()) for chain in chains)
    keep_info = tuple(chain.keeps_info for chain in chains)
    connection = Connection(address, window=1)
    try:
        welcome = connection.greet(options.connect_timeout_s)
        differ = unlike(welcome.software)
        draws_alike = DECODERS.issuperset(differ)
        # What the agent cuts out of a file depends on random numbers that it draws itself.
        possible = [name for name in allowed if draws_alike or used_at(name) is not UsedAt.FIRST_REGION]
        offered = usable(possible, welcome.encodings)
        agreed = replace(options, window=min(options.window, welcome.max_outstanding))
        terms = Terms(address, agreed, welcome.instance, registrations, keep_info, seed, offered)
        _check_files(connection, data, locations, terms)
        known = _register(connection, terms) if draws_alike else tuple(0 for _ in chains)
    finally:
        connection.close()
    notes = _notes_on_software(welcome, differ) if differ else _notes_on_ops(chains, known)
    if "roi-jpeg" in allowed:
        notes += _notes_on_encodings(welcome, address, draws_alike)
    return Agreement(terms, locations, known, welcome.cores, offered, tuple(notes), str(address))


def _register(connection: Connection, terms: Terms) -> tuple[int, ...]:
    """How many leading ops of each chain the agent can run."""
    timeout_s = terms.options.connect_timeout_s + _BUILD_S
    return tuple(connection.register(registration, timeout_s) for registration in terms.registrations)


def _notes_on_software(welcome: Welcome, differ: Sequence[str]) -> list[str]:
    here, there = software(), welcome.software
    both = ", ".join(f"{name} {here[name]} here and {there.get(name)} there" for name in differ)
    return [f"no op runs at the agent, because its pixels could differ: {both}"]


def _notes_on_ops(chains: Sequence[Chain], known: Sequence[int]) -> list[str]:
    return [
        f"the agent knows only the first {ops} ops of the pipeline; {chain.ops[ops].label} is not registered there"
        for ops, chain in zip(known, chains, strict=True)
        if ops < chain.describable
    ]


def _notes_on_encodings(welcome: Welcome, address: Address, draws_alike: bool) -> list[str]:
    if "roi-jpeg" not in encoding_names():
        return []  # the loader's own note says so
    if "roi-jpeg" not in welcome.encodings:
        return [f"the agent does not offer roi-jpeg; `sophon-agent status {address.endpoint}` says why"]
    return [] if draws_alike else ["roi-jpeg is not used, because the agent's random numbers could differ, too"]


def _check_files(connection: Connection, data: Offloadable, locations: Locations, terms: Terms) -> None:
    """See at a few files that the agent serves this dataset and not another one.

    Raises:
        ConfigError: it does not; the text names the cause.
    """
    step = max(1, len(data) // _PROBED)
    indices = range(0, len(data), step)
    probed = [(locations.key_in_export(index), locations.path_here(index)) for index in indices]
    answer = connection.sizes([key for key, _ in probed], terms.options.dead_after_s)
    found = [(key, path, nbytes) for (key, path), nbytes in zip(probed, answer.nbytes, strict=True)]
    # Of what is not here, only the agent knows; a failure shows when it is asked for.
    here = [(key, path, nbytes) for key, path, nbytes in found if path is not None and os.path.exists(path)]
    for key, path, nbytes in here:
        if nbytes == OUTSIDE:
            raise ConfigError(
                f"files must lie inside the export, got {key!r}, at the agent a link that leaves {answer.root} "
                f"(here {os.path.realpath(path)}); export the folder that holds what the links lead to, or put the "
                "files in place of the links"
            )
    missing = [(key, path) for key, path, nbytes in here if nbytes == NO_FILE]
    if here and len(missing) == len(here):
        key, path = missing[0]
        raise ConfigError(
            f"the address must name the dataset's folder, got {terms.address}, whose export is {answer.root}: it has "
            f"no {key!r}, which is {path} on this host, nor any other file that was looked for; if the dataset is a "
            "folder of the export, add it to the address: tcp://host:port/export/folder"
        )
    if missing:
        key, path = missing[0]
        raise ConfigError(
            f"the export must hold all files of the dataset, got none for {key!r} in {answer.root} at {terms.address}, "
            f"which is {path} on this host, though others are there; bring the agent's copy up to date"
        )
    for key, path, nbytes in here:
        size = os.path.getsize(path)
        if size != nbytes:
            raise ConfigError(
                f"the export must hold the same files, got {key!r} with {nbytes} bytes in {answer.root} at "
                f"{terms.address} and {size} bytes in {path} on this host; both must be copies of the same data"
            )


def own_address(data: Offloadable) -> Address | None:
    """The export that a RemoteImageFolder names itself."""
    named = [source.address for source in data.sources if source.address is not None]
    return Address(named[0].endpoint, named[0].export) if named else None
