"""Where an agent has a dataset's files, by a few of them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from functools import partial

from sophon_loader.client.address import Address
from sophon_loader.client.connection import Connection
from sophon_loader.client.options import OffloadOptions
from sophon_loader.client.session import Terms
from sophon_loader.datasets.folders import what_is_there
from sophon_loader.datasets.given_roots import GivenRoots
from sophon_loader.datasets.locations import Locations, last_names
from sophon_loader.datasets.protocol import Offloadable
from sophon_loader.errors import ConfigError
from sophon_loader.figures import counted
from sophon_loader.host.regular import lasting_sizes
from sophon_loader.logs import log_line
from sophon_loader.wire.messages import NO_FILE, OUTSIDE

log = logging.getLogger(__name__)

_PROBED = 8
"""How many files are compared by size before the first epoch."""
PROBED_OF_SEVERAL = 400
"""How many are looked for at one of several agents that has none of the few: it may have a small part of the dataset.
Far more would not fit one message if their names were as long as can be."""


@dataclass(frozen=True)
class LookedFor:
    """A few files of the dataset at the agent: its folder, and (key, path here, bytes there) of each."""

    root: str
    files: list[tuple[str, str | None, int]]

    @property
    def any_there(self) -> bool:
        return any(nbytes != NO_FILE for _, _, nbytes in self.files)

    def below_given_roots(self, roots: GivenRoots, terms: Terms, *, is_one_of_several: bool) -> LookedFor:
        """The same without what is not there, for folders that the user has given.

        Args:
            roots: those folders.
            terms: of the agent.
            is_one_of_several: whether others may have all that it lacks.

        Raises:
            ConfigError: no file below one of the folders is there.
        """
        there = [one for one in self.files if one[2] != NO_FILE]
        if not is_one_of_several:
            found = {roots.root_of(path) for _, path, _ in there if path is not None}
            for key, path, _ in self.files:
                if path is not None and (root := roots.root_of(path)) not in found:
                    told = what_is_there(terms.address, terms.options)
                    raise ConfigError(
                        f"roots must say which folder at the agent has the files below {root}, got {key!r} for {path}, "
                        f"and no such file in {self.root} at {terms.address}{told and ': '}{told}; correct the folder "
                        "in OffloadOptions(roots=...)"
                    )
        return LookedFor(self.root, there[:_PROBED])

    def of_those_there(self, terms: Terms, remedy: str = "") -> LookedFor:
        """The same without what is not there.

        Args:
            terms: of the agent.
            remedy: what a user may do besides.

        Raises:
            ConfigError: that is all.
        """
        there = [one for one in self.files if one[2] != NO_FILE][:_PROBED]
        if self.files and not there:
            told = what_is_there(terms.address, terms.options)
            raise ConfigError(
                f"each of several agents must have some files of the dataset, got {terms.address}, whose export is "
                f"{self.root}{told and ': '}{told}; it has none of {counted(len(self.files), 'file')} that were looked "
                f"for, such as {self.files[0][0]!r}; leave it out, or correct its folder{remedy}"
            )
        return LookedFor(self.root, there)

    @property
    def all_the_same(self) -> bool:
        """Whether all are there, and those that are here too have the same size."""
        return bool(self.files) and all(self._same(path, nbytes) for _, path, nbytes in self.files)

    @property
    def some_the_same(self) -> bool:
        """Whether some are there, and those of them that are here too have the same size."""
        there = [(path, nbytes) for _, path, nbytes in self.files if nbytes != NO_FILE]
        return bool(there) and all(self._same(path, nbytes) for path, nbytes in there)

    @staticmethod
    def _same(path: str | None, nbytes: int) -> bool:
        return nbytes >= 0 and (path is None or not os.path.exists(path) or os.path.getsize(path) == nbytes)


def look_for(
    connection: Connection, data: Offloadable, address: Address, options: OffloadOptions, count: int = _PROBED
) -> tuple[Locations, LookedFor]:
    """Where the agent has the files, and a few of them: what the address names may be the dataset's root, a folder in
    it, or one that holds it, under its last names.

    Raises:
        ConfigError: several folders of the export could be the dataset's root.
    """
    usual = Locations(data, address)
    first = _asked_for(connection, data, usual, options, count)
    if first.any_there or data.given_roots:
        return usual, first
    for inner in usual.folders_inside():
        locations = Locations(data, address, inner)
        found = _asked_for(connection, data, locations, options, count)
        if found.any_there:
            return locations, found
    fitting = []
    for folder in last_names(data):
        locations = Locations(data, replace(address, folder=address.key(folder)))
        found = _asked_for(connection, data, locations, options, count)
        if found.some_the_same if count > _PROBED else found.all_the_same:
            fitting.append((folder, locations, found))
    if len(fitting) > 1:
        raise ConfigError(
            f"the address must say which folder is the dataset's, got {address}, where several folders have its "
            f"files: {', '.join(folder for folder, *_ in fitting)}; add one of them to the address"
        )
    for folder, locations, found in fitting:
        log.info(log_line("folder found", agent=address, folder=folder))
        return locations, found
    return usual, first


def _asked_for(
    connection: Connection, data: Offloadable, locations: Locations, options: OffloadOptions, count: int
) -> LookedFor:
    indices = range(0, len(data), max(1, len(data) // count))[:count]
    probed = [(locations.key_in_export(index), locations.path_here(index)) for index in indices]
    answer = connection.sizes([key for key, _ in probed], options.dead_after_s)
    return LookedFor(answer.root, [(*one, nbytes) for one, nbytes in zip(probed, answer.nbytes, strict=True)])


def check_files(found: LookedFor, terms: Terms, connection: Connection) -> None:
    """See at a few files that the agent serves this dataset and not another one.

    Raises:
        ConfigError: it does not; the text names the cause.
    """
    # Of what is not here, only the agent knows; a failure shows when it is asked for.
    here = [(key, path, nbytes) for key, path, nbytes in found.files if path is not None and os.path.exists(path)]
    for key, path, nbytes in here:
        if nbytes == OUTSIDE:
            raise ConfigError(
                f"files must lie inside the export, got {key!r}, which at the agent is a link that leaves {found.root} "
                f"(on this host it leads to {os.path.realpath(path)}); export a folder that also holds the files "
                "that links lead to, or replace the links by the files"
            )
    missing = [(key, path) for key, path, nbytes in here if nbytes == NO_FILE]
    if here and len(missing) == len(here):
        key, path = missing[0]
        told = what_is_there(terms.address, terms.options)
        raise ConfigError(
            f"the address must name the dataset's folder, got {terms.address}, whose export is {found.root}"
            f"{told and ': '}{told}; it has no {key!r} ({path} on this host), nor any other file that was looked for; "
            "if the dataset is a folder of the export, add it to the address: tcp://host:port/export/folder"
        )
    if missing:
        key, path = missing[0]
        raise ConfigError(
            f"the export must hold all files of the dataset, got no {key!r} in {found.root} at {terms.address} "
            f"({path} on this host), though others are there; bring the agent's copy up to date"
        )
    for key, path, nbytes in here:
        if os.path.getsize(path) == nbytes:
            continue
        # It may have been replaced meanwhile, or `stat` says 0 bytes of all files.
        differ = lasting_sizes(path, partial(_size_there, connection, key, terms))
        if differ is not None:
            raise ConfigError(
                f"the export must hold the same files, got {key!r} with {differ[1]} bytes in {found.root} at "
                f"{terms.address} and {differ[0]} bytes in {path} on this host; make both copies of the same data"
            )


def _size_there(connection: Connection, key: str, terms: Terms) -> int:
    return len(connection.file(key, terms.options.dead_after_s))
