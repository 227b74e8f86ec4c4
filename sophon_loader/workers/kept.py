"""The cache on this host as loader workers use it: files are kept under their paths, as the versions that lie there.

A copy is served only while the mounted file is the one that was copied, which is looked at each time: by its size and
its times of change, in nanoseconds. A file is copied only if those were the same before it was asked for and after.
"""

from __future__ import annotations

import contextlib
import os

from sophon_loader.client.wanted import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.encodings.encoding import Payload
from sophon_loader.host.regular import open_regular, read_regular, read_to_end
from sophon_loader.routes.cache import Cache, drawn, version_of
from sophon_loader.routes.segments import Version

YOUNG_S, BEHIND_S = 2.0, 60.0
"""Files that were changed so lately are not kept: they may be changed again without a sign, since file systems count
time in steps; and an agent that reads a mount of its own may be behind by as long as that trusts what it knows."""
MAX_VAIN = 16
"""Files in a row that could not be kept, after which a process asks for none for that reason: there may be no room."""


class Kept:
    """What is kept of a dataset's files.

    Args:
        cache: on this host; None for none.
        locations: of the files.
    """

    def __init__(self, cache: Cache | None, locations: Locations) -> None:
        self._cache = cache if cache is not None and not cache.why_not else None
        self._locations = locations
        self._vain = 0

    @property
    def serves(self) -> bool:
        """Whether there is a cache."""
        return self._cache is not None

    def look(self, sample: int, fill: float = 1.0, epoch: int = 0) -> tuple[bool, Version | None]:
        """Whether a sample's file is kept, in whichever version; and, if it is one to keep, its version now.

        Args:
            sample: its index.
            fill: share that is asked for as files of those that are to be kept, for that reason where it is below 1.
            epoch: in which it is asked for.
        """
        cache, path = self._cache, self._locations.path_here(sample)
        if cache is None or path is None:
            return False, None
        key = os.path.abspath(path)
        if cache.has(key):
            return True, None
        drawn_now = fill >= 1 or (self._vain < MAX_VAIN and fill > 0 and drawn(key, epoch) < fill)
        if drawn_now and cache.admits(key):
            with contextlib.suppress(OSError):
                return False, version_of(os.stat(path))
        return False, None

    def read(self, path: str) -> tuple[bytes, bool]:
        """The file at a path, and whether it is from the cache; if not, it is there from now on, if it can be.

        Raises:
            OSError: the file cannot be read, or is none that has an end.
        """
        cache = self._cache
        if cache is None:
            return read_regular(path), False
        # Opened even if there is a copy: a network file system may tell of others what was so some seconds ago.
        descriptor = open_regular(path)
        try:
            version, key = version_of(os.fstat(descriptor)), os.path.abspath(path)
            found = cache.get(key, version)
            if found is not None:
                return found, True
            data = read_to_end(descriptor, version.nbytes)
            after = version_of(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if after == version:
            cache.put(key, version, data, YOUNG_S)
        return data, False

    def keep(self, wanted: Wanted, data: Payload) -> None:
        """Keep a file that an agent has sent, if it is one to keep."""
        cache, path = self._cache, self._locations.path_here(wanted.sample)
        if cache is None or wanted.before is None or path is None:
            return
        with contextlib.suppress(OSError):
            after = version_of(os.stat(path))
            same = after == wanted.before
            kept = same and cache.put(os.path.abspath(path), after, data, BEHIND_S)
            self._vain = 0 if kept else self._vain + 1
