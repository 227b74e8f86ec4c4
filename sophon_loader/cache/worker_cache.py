"""The cache on this host as loader workers use it. Files are cached under their paths, with their versions.

A copy is served only while the mounted file has the copied version. Its size and times of change, in nanoseconds, are
compared for each sample. A file is copied only if they were equal before it was requested and after it arrived. If
nothing is mounted, the content of the agents' exports replaces the times, see `contents.py`.
"""

from __future__ import annotations

import contextlib
import os
import shlex

from sophon_loader.cache.cache import Cache, drawn, version_of
from sophon_loader.cache.contents import Connections, Contents
from sophon_loader.cache.segment import FileVersion
from sophon_loader.client.wanted import Wanted
from sophon_loader.datasets.locations import Locations
from sophon_loader.encodings.encoding import Payload
from sophon_loader.host.regular import open_regular, read_regular, read_to_end

YOUNG_S, BEHIND_S = 2.0, 60.0
"""Minimum age of a cached file, s, if it is read here and if an agent reads it. A younger file could change again
without a new time, since file systems count time in steps. An agent's own mount may also lag behind, for as long as it
trusts its attribute cache."""
MAX_VAIN = 16
"""Failures in a row to cache a file, after which a process requests no more files only for the cache. There may be no
room."""


Before = FileVersion | Connections
"""State before a file is requested: its version, or the connections that may send it."""


class WorkerCache:
    """The cached files of a dataset, as a worker reads and writes them.

    Args:
        cache: on this host; None for none.
        locations: of the files.
    """

    def __init__(self, cache: Cache | None, locations: Locations) -> None:
        self._cache = cache if cache is not None and not cache.why_not else None
        self._locations = locations
        self._vain = 0
        self._damaged: set[int] = set()
        """Samples whose copies could not be read."""
        content = "" if self._cache is None else self._cache.content
        self.contents = Contents(content)
        self._where, self._version = split_content(content)

    @property
    def serves(self) -> bool:
        """True if there is a cache."""
        return self._cache is not None

    def look(self, sample: int, fill: float = 1.0, epoch: int = 0) -> tuple[bool, Before | None]:
        """Return (True if the sample's file is cached, state to compare after the file has arrived).

        The state is the mounted file's version, or the agents' connections if nothing is mounted. It is None if the
        file is cached already, or is not to be cached.

        Args:
            sample: its index.
            fill: share of the files to be cached that are requested whole in this epoch, in order to be cached; below 1
                the others are not cached yet.
            epoch: number of the epoch.
        """
        cache, path = self._cache, self._locations.path_here(sample)
        if cache is None:
            return False, None
        connections = self.contents.looked() if path is None else None
        if path is None and connections is None:
            return False, None
        key = self._key(sample) if path is None else os.path.abspath(path)
        if cache.has(key) if path is not None else self._found(cache, key) and sample not in self._damaged:
            return True, None
        drawn_now = fill >= 1 or (self._vain < MAX_VAIN and fill > 0 and drawn(key, epoch) < fill)
        if drawn_now and cache.admits(key):
            if path is None:
                return False, connections
            with contextlib.suppress(OSError):
                return False, version_of(os.stat(path))
        return False, None

    def copy(self, sample: int) -> bytes | None:
        """Return the copy of a file that is not mounted; None if the copy is damaged or may be outdated.

        Raises:
            ConfigError: an agent serves other content than that of the copies.
        """
        if self._cache is None or self.contents.looked() is None:
            return None
        key = self._key(sample)
        found = self._found(self._cache, key)
        data = None if found is None else self._cache.get(key, found)
        if data is None:
            self._damaged.add(sample)
        return data

    def _key(self, sample: int) -> str:
        """Return the key of a file that is not mounted. A replaced file has the same key, and so replaces the old
        copy."""
        return f"{self._where}\0{self._locations.key_in_export(sample)}"

    def _found(self, cache: Cache, key: str) -> FileVersion | None:
        found = cache.version(key)
        return found if found is not None and found[1:] == self._version else None

    def read(self, path: str) -> tuple[bytes, bool]:
        """Return the file at a path, and True if it came from the cache. If it did not, it is cached now if possible.

        Raises:
            OSError: the file cannot be read, or is not a regular one.
        """
        cache = self._cache
        if cache is None:
            return read_regular(path), False
        # Opened even if there is a copy: a network file system may otherwise report a state that is seconds old.
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
        """Cache a file that an agent has sent, if it is to be cached.

        Args:
            wanted: the request, with the state before it.
            data: bytes of the file.
        """
        cache, path = self._cache, self._locations.path_here(wanted.sample)
        if cache is None or wanted.before is None:
            return
        if path is None:
            version = FileVersion(len(data), *self._version)
            same = self.contents.same(wanted.before)  # type: ignore[arg-type]
            kept = same and cache.put(self._key(wanted.sample), version, data, sent=True)
            self._vain = 0 if kept else self._vain + 1
            if kept:
                self._damaged.discard(wanted.sample)
            return
        with contextlib.suppress(OSError):
            after = version_of(os.stat(path))
            same = after == wanted.before
            kept = same and cache.put(os.path.abspath(path), after, data, BEHIND_S, sent=True)
            self._vain = 0 if kept else self._vain + 1

    def withdraw_sent(self) -> str:
        """Withdraw all copies that agents have sent, because one of them was found to serve other files.

        Returns:
            A note for the user; "" without a cache.
        """
        if self._cache is None:
            return ""
        if self._cache.withdraw_sent():
            return "no copy that an agent has sent is taken from the cache any more; this needs nothing from you"
        folder = shlex.quote(os.path.dirname(self._cache.folder))
        return f"the cache may hold such files, and its disk cannot be written: run `sophon-cache clear {folder}`"


def split_content(content: str) -> tuple[str, tuple[int, int]]:
    """Split the content of an export into its place and the digest of its index.

    Args:
        content: result of `content_of`; "" for none.

    Returns:
        The place, and the digest as two numbers, which are used as a version's times of change.
    """
    where, _, digest = content.removesuffix(")").rpartition(" (index ")
    data = bytes.fromhex(digest)
    return where, (int.from_bytes(data[:8], "little", signed=True), int.from_bytes(data[8:], "little", signed=True))
