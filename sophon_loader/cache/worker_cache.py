"""The cache on this host as loader workers use it: files are kept under their paths, as the versions that lie there.

A copy is served only while the mounted file is the one that was copied, which is looked at each time: by its size and
its times of change, in nanoseconds. A file is copied only if those were the same before it was asked for and after.
Where nothing is mounted, the content of the agents' exports takes the place of times, see `contents.py`.
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
"""Files that were changed so lately are not kept: they may be changed again without a sign, since file systems count
time in steps; and an agent that reads a mount of its own may be behind by as long as that trusts what it knows."""
MAX_VAIN = 16
"""Files in a row that could not be kept, after which a process asks for none for that reason: there may be no room."""


Before = FileVersion | Connections
"""What a file, or what may send it, was like before it was asked for."""


class WorkerCache:
    """What is kept of a dataset's files.

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
        """Whether there is a cache."""
        return self._cache is not None

    def look(self, sample: int, fill: float = 1.0, epoch: int = 0) -> tuple[bool, Before | None]:
        """Whether a sample's file is kept, in whichever version; and, if it is one to keep, its version now, or where
        it is not mounted, by which connections it may come.

        Args:
            sample: its index.
            fill: share that is asked for as files of those that are to be kept, for that reason where it is below 1.
            epoch: in which it is asked for.
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
        """The copy of a file that is not mounted; None if it is not there as it was written, or may be out of date.

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
        """What a file is kept under that is not mounted: one that is replaced takes its own place."""
        return f"{self._where}\0{self._locations.key_in_export(sample)}"

    def _found(self, cache: Cache, key: str) -> FileVersion | None:
        found = cache.version(key)
        return found if found is not None and found[1:] == self._version else None

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
        """An agent was found to have other files: what agents have sent is not taken from the cache any more.

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
    """Where an export lies, and the digest of what is in it as two numbers, which take the place of times of change.

    Args:
        content: as of `content_of`; "" for none.
    """
    where, _, digest = content.removesuffix(")").rpartition(" (index ")
    data = bytes.fromhex(digest)
    return where, (int.from_bytes(data[:8], "little", signed=True), int.from_bytes(data[8:], "little", signed=True))
