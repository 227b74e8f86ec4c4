"""Archives whose members can be read one by one: tar, plain zip and parquet files, MDS and Lance sets."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from sophon_loader.errors import (
    AgentBusy,
    ConfigError,
    SampleError,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
)
from sophon_loader.host.regular import open_regular
from sophon_loader.wire.messages import NO_FILE, OUTSIDE
from storage_agent.host.agent_settings import Indexed
from storage_agent.host.descriptors import NONE_LEFT
from storage_agent.stores import refusals
from storage_agent.stores.archives.index import FOLDER, LINK, OTHER, BadIndex, ContainerVersion, Index, IndexEntry
from storage_agent.stores.archives.indexing import indexed

_MAX_LINKS = 40
"""Links that one key may pass, as on Linux."""


class _Leaves(Exception):
    """A link leads out of the archives."""


class _Loop(Exception):
    """A key passes too many links."""


class Archive:
    """Reads members of archives as files of one folder; see `Store`.

    Args:
        export: the export's name, for the texts of errors.
        location: `tar://`, `zip://`, `parquet://`, `mds://` or `lance://` and a path, which may have ranges in braces
            and `*`.
        max_file_nbytes: larger files are refused.
        index_folder: where indexes are kept; None for the usual one.
        found: the index and the archives that the agent found at its start; None before that.

    Example:
        >>> store = Archive("photos", "tar:///data/photos.tar", max_file_nbytes=1 << 28)
        >>> store.check()
        >>> store.size("cats/1.jpg")
        109648
    """

    def __init__(
        self,
        export: str,
        location: str,
        max_file_nbytes: int,
        *,
        index_folder: Path | None = None,
        found: Indexed | None = None,
    ) -> None:
        self._export = export
        self._location = location
        self._max_file_nbytes = max_file_nbytes
        self._index_folder = index_folder
        self.found = found
        self._opened: Index | None = None
        self._intact = bytearray()
        """By position in the index: whether a member's bytes were once those of its CRC-32. A check takes CPU that
        counts in a request whose file is in memory, so each member is checked when it is first read."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Have an index of the archives, which another process makes if there is none.

        Raises:
            ConfigError: they cannot be served.
        """
        self.found, index = indexed(self._export, self._location, self._index_folder)
        self._hold(index)
        if not len(self._index):
            raise ConfigError(
                f"export {self._export!r} must be archives with something in them, got {self._location}, which has "
                "nothing to serve"
            )

    def describe(self) -> str:
        """The location, and the digest of its index."""
        return f"{self._location} (index {self._index.digest.hex()})"

    def read(self, key: str) -> bytes:
        """The bytes of one member.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable.
        """
        return self.begin(key, self._max_file_nbytes)[0]

    def begin(self, key: str, nbytes: int) -> tuple[bytes, int]:
        """The beginning of one member, of `nbytes` or all that it has, and its size in bytes.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable.
        """
        entry = self._entry(key)
        if entry is None:
            raise self._missing(key)
        if entry.container in (FOLDER, OTHER):
            raise refusals.no_file(self._export, key)
        if entry.length > self._max_file_nbytes:
            raise refusals.too_large(self._export, key, entry.length, self._max_file_nbytes)
        return self._read(entry, key, min(nbytes, entry.length)), entry.length

    def size(self, key: str) -> int:
        """The member's size in bytes; `NO_FILE` when there is none, `OUTSIDE` when it, or its key, leaves them."""
        self._index  # noqa: B018 - without an index, no size can be told
        try:
            entry = self._entry(key)
        except SampleOutsideExport:
            return OUTSIDE
        except SampleError:
            return NO_FILE
        return NO_FILE if entry is None or entry.container in (FOLDER, OTHER) else entry.length

    def expect(self, keys: Sequence[str], nbytes: int | None = None) -> None:
        """Nothing: files come as quickly as they are read."""

    def walk(self, prefix: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Like os.walk, following links, but not in circles; see `Store.walk`.

        Raises:
            SampleMissing, SampleOutsideExport, SampleUnreadable: of `prefix`.
        """
        top = b""
        if prefix:
            refusals.check_key(self._export, prefix)
            entry = self._followed(prefix)
            if entry is None or not (entry.container == FOLDER or _is_above(self._index, entry.name)):
                raise refusals.missing(self._export, prefix)
            top = entry.name
        waiting: list[tuple[str, tuple[bytes, ...]]] = [("", (top,))]
        while waiting:
            relative, above = waiting.pop()
            if above[-1] in above[:-1]:
                continue
            folders: dict[str, bytes] = {}
            files: list[str] = []
            for name, path in self._listed(above[-1]):
                shown = name.decode("utf-8", "surrogateescape")
                if path is None:
                    files.append(shown)
                else:
                    folders[shown] = path
            yield relative, list(folders), files
            waiting += [(os.path.join(relative, name), (*above, path)) for name, path in folders.items()]

    def _missing(self, key: str) -> SampleMissing:
        """The error for a key that the index has not."""
        return refusals.missing(self._export, key)

    @property
    def _index(self) -> Index:
        with self._lock:
            if self._opened is None:
                self._hold(self._open())
            assert self._opened is not None
            return self._opened

    def _hold(self, index: Index) -> None:
        """Read by this index from now on."""
        self._intact = bytearray(len(index))
        self._opened = index

    def _open(self) -> Index:
        if self.found is None:
            raise SampleUnreadable(f"export {self._export!r} must be checked before it is read")
        try:
            index = Index(self.found.index)
        except (OSError, BadIndex) as error:
            if isinstance(error, OSError) and error.errno in NONE_LEFT:
                raise refusals.no_descriptor() from error
            raise SampleUnreadable(
                f"the index of export {self._export!r} must be there while the agent runs, got none at "
                f"{self.found.index}: {error}; restart the agent"
            ) from error
        if len(index.containers) != len(self.found.containers) + len(self.found.unpacked):
            raise SampleUnreadable(f"the index of export {self._export!r} must be of its archives; restart the agent")
        return index

    def _entry(self, key: str) -> IndexEntry | None:
        """What is at a key, behind links; None if nothing is."""
        refusals.check_key(self._export, key)
        entry = self._index.find(key.encode("utf-8", "surrogateescape"))
        return self._followed(key) if entry is None or entry.container == LINK else entry

    def _followed(self, key: str) -> IndexEntry | None:
        try:
            return _follow(self._index, key.encode("utf-8", "surrogateescape"))
        except _Leaves:
            raise refusals.leaves(self._export, key) from None
        except _Loop:
            raise refusals.unreadable(self._export, key, os.strerror(errno.ELOOP)) from None

    def _listed(self, folder: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """(name, path behind links if it is a folder) of what lies in a folder."""
        index, above = self._index, folder + b"/" if folder else b""
        position = index.first(above)
        before = b""
        while position < len(index):
            entry = index.entry(position)
            if not entry.name.startswith(above):
                return
            name, slash, _ = entry.name[len(above) :].partition(b"/")
            path = above + name
            if slash or entry.container == FOLDER:
                position = index.first(path + b"0", position) if slash else position + 1  # "0" follows "/"
                if name != before:
                    yield name, path
                before = name
                continue
            position += 1
            yield name, _folder_behind(index, path) if entry.container == LINK else None

    def _read(self, entry: IndexEntry, key: str, nbytes: int) -> bytes:
        assert self.found is not None
        count = len(self.found.containers)
        path = self.found.containers[entry.container % count]
        is_unpacked = entry.container >= count
        if is_unpacked:
            self._see_same(path, entry.container - count, key)
            path = self.found.unpacked[entry.container - count]
        try:
            descriptor = open_regular(path)
            try:
                data = _pread(descriptor, nbytes, entry.offset)
                version = ContainerVersion.of(os.fstat(descriptor))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._read_error(error, path, key) from error
        if version != self._index.containers[entry.container] or len(data) != nbytes:
            raise self._changed(path, key)
        if entry.crc is not None and nbytes == entry.length and not self._intact[entry.position]:
            self._check_crc(entry.crc, data, path, key, is_unpacked)
            self._intact[entry.position] = 1
        return data

    def _see_same(self, path: str, container: int, key: str) -> None:
        """See that the archive of an unpacked picture is the one that was unpacked.

        Raises:
            SampleUnreadable: it is another one.
        """
        try:
            version = ContainerVersion.of(os.stat(path))
        except OSError as error:
            raise self._read_error(error, path, key) from error
        if version != self._index.containers[container]:
            raise self._changed(path, key)

    def _changed(self, path: str, key: str, how: str = "has changed") -> SampleUnreadable:
        return SampleUnreadable(
            f"archives must stay as they were when the agent started, got {path}, which {how}, for {key!r} of export "
            f"{self._export!r}; restart the agent"
        )

    def _check_crc(self, expected: int, data: bytes, path: str, key: str, is_unpacked: bool) -> None:
        if (found := zlib.crc32(data)) == expected:
            return
        notes, remedy = "archive", "the archive is damaged: test it (unzip -t), copy it again, and restart the agent"
        if self._location.startswith(("parquet:", "mds:", "lance:")):
            notes = "index"
            remedy = (
                "the file was replaced or is damaged: copy it anew, so that its time changes, and restart the agent"
            )
        if is_unpacked:
            remedy = "the disk may be damaged: remove this file, and restart the agent, which makes it anew"
        raise SampleUnreadable(
            f"member must have the CRC-32 that its {notes} notes, {expected:08x}, got {found:08x} for {key!r} of "
            f"export {self._export!r} in {path}; {remedy}"
        )

    def _read_error(self, error: OSError, path: str, key: str) -> SampleUnreadable | AgentBusy:
        if error.errno in NONE_LEFT:
            return refusals.no_descriptor()
        if error.errno in (errno.ENOENT, errno.ESTALE):  # a Lance set was compacted, say
            return self._changed(path, key, "is gone")
        return refusals.unreadable(self._export, key, f"{path}: {error.strerror}")


def _pread(descriptor: int, nbytes: int, offset: int) -> bytes:
    """The bytes at an offset; fewer where the file ends."""
    data = os.pread(descriptor, nbytes, offset)
    while len(data) < nbytes and (more := os.pread(descriptor, nbytes - len(data), offset + len(data))):
        data += more
    return data


def _follow(index: Index, key: bytes) -> IndexEntry | None:
    """What is at a key, behind all links on the way; None if nothing is.

    Raises:
        _Leaves, _Loop.
    """
    waiting = key.split(b"/")[::-1]
    done: list[bytes] = []
    links = 0
    entry: IndexEntry | None = IndexEntry(b"", FOLDER)
    while waiting:
        if entry is None:
            return None
        if entry.container != FOLDER:
            if not _is_above(index, entry.name):
                return None
            entry = IndexEntry(entry.name, FOLDER)  # a bucket may have both `cats` and `cats/1.jpg`
        part = waiting.pop()
        if part in (b"", b"."):
            continue
        if part == b"..":
            if not done:
                raise _Leaves
            done.pop()
            continue
        path = b"/".join([*done, part])
        entry = index.find(path)
        if entry is not None and entry.container == LINK:
            links += 1
            if links > _MAX_LINKS:
                raise _Loop
            if entry.target.startswith(b"/"):
                raise _Leaves
            waiting += entry.target.split(b"/")[::-1]
            entry = IndexEntry(b"/".join(done), FOLDER)
            continue
        done.append(part)
        if entry is None and _is_above(index, path):
            entry = IndexEntry(path, FOLDER)
    return entry._replace(name=b"/".join(done)) if entry is not None else None


def _is_above(index: Index, path: bytes) -> bool:
    """Whether anything lies below a path."""
    position = index.first(path + b"/")
    return position < len(index) and index.raw(position).startswith(path + b"/")


def _folder_behind(index: Index, path: bytes) -> bytes | None:
    """The folder to which a link leads, if it leads to one."""
    try:
        entry = _follow(index, path)
    except (_Leaves, _Loop):
        return None
    return entry.name if entry is not None and entry.container == FOLDER else None
