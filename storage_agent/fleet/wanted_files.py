"""The files in which ranks say how many cores of agents they could use. Their folder may hold anything at all."""

from __future__ import annotations

import itertools
import os

from sophon_loader.errors import MalformedMessage
from sophon_loader.host.regular import read_below
from sophon_loader.wire.entry import SUFFIX
from sophon_loader.wire.wanted_cores import MAX_NBYTES, PREFIX, WantedCores
from storage_agent.fleet.fleet_size import FoundWantedFile

MAX_FILES = 1000
MAX_NAMES = 16 * MAX_FILES
"""In the folder that are looked at; agents' entries lie there, too."""


def read_wanted(folder: str) -> dict[str, FoundWantedFile]:
    """The files that say something, by name. May take as long as the folder's disk takes.

    Raises:
        OSError: the folder cannot be read.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as listing:
            there = [one.name for one in itertools.islice(listing, MAX_NAMES)]
        names = sorted(name for name in there if name.startswith(PREFIX) and name.endswith(SUFFIX))
        found = {name: _file(descriptor, name) for name in names[:MAX_FILES]}
    finally:
        os.close(descriptor)
    return {name: file for name, file in found.items() if file is not None}


def _file(folder: int, name: str) -> FoundWantedFile | None:
    """A file of a folder; None for one that is gone, is no file, cannot be read or says something else."""
    try:
        data, status = read_below(folder, name, MAX_NBYTES)
        return FoundWantedFile((status.st_mtime_ns, status.st_ino, data), WantedCores.parse(data))
    except (OSError, MalformedMessage):  # also ESTALE, of one that has just been replaced
        return None
