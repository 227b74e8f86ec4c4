"""The index of archives: name -> where its bytes lie, in a file that is mapped into memory and never parsed.

The form, little-endian: a header, (size, time of change) of each archive, a record of 24 bytes per name in the order of
the names' bytes and one that ends them, the names. Behind a zero byte, a name that is a link has its target, one of an
object of a far store its version, and one of a member with a checksum its CRC-32. What follows the names is for the
operator, see `notes.py`.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import fcntl
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import xxhash

from sophon_loader.host.private import WRITING, NotPrivate, check_private
from storage_agent.stores.archives.notes import Notes

LINK, FOLDER, OTHER, OBJECT = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD, 0xFFFFFFFC
"""In place of a container's number: a symbolic link; a folder; a pipe or device; an object of a far store."""
MAX_LENGTH = 0xFFFFFFFF
"""Of a member, in bytes."""
UNFINISHED = ".making-"
"""How the name of a file that is being written begins."""
MAGIC = b"SOPHIDX\3"
"""The form of an index."""
UNPACKED_SUFFIX = ".unpacked"
UNFINISHED_S = 24 * 3600
"""Age in seconds at which nobody writes a file any more, nor is about to open it."""
_HEADER = struct.Struct("<8sIIQQ16s")
"""Magic, number of containers, whether there are links, number of records, bytes of names, digest of the rest."""
_CONTAINER = struct.Struct("<Qq")
_RECORD = struct.Struct("<QQII")
"""Where its name begins, where its bytes lie, their number, container."""
_TWO_NAMES = struct.Struct("<Q16xQ")
_STEP_NBYTES = 1 << 20


class BadIndex(Exception):
    """A file is no index, or is damaged."""


class ContainerVersion(NamedTuple):
    """What tells a container from what it was before: its size in bytes, and its time of change."""

    nbytes: int
    modified_ns: int

    @staticmethod
    def of(status: os.stat_result) -> ContainerVersion:
        """The one that `stat` tells."""
        return ContainerVersion(status.st_size, status.st_mtime_ns)


class IndexEntry(NamedTuple):
    """A name of an index.

    Args:
        name: the key, as bytes.
        container: number of its archive, or LINK, FOLDER, OTHER, OBJECT.
        offset: where its bytes begin there.
        length: their number.
        target: of a link; the version of an object (see `objects.py`).
        crc: the CRC-32 that the archive notes of its bytes; None where it notes none.
        position: in the index that it is read from; -1 elsewhere.
    """

    name: bytes
    container: int
    offset: int = 0
    length: int = 0
    target: bytes = b""
    crc: int | None = None
    position: int = -1


class Index:
    """An index in memory; safe under threads.

    Its file is locked while this object lives, so that `remove_unused` leaves it: on NFS, a file that another host has
    removed is gone for those who have it open, too.

    Args:
        path: its file.

    Raises:
        BadIndex: it is none, is being removed, or others than this user and root may have written it.
        OSError: it cannot be read.

    Example:
        >>> index = Index(Path("/home/ann/.cache/sophon/indexes/5f0c...index"))
        >>> index.find(b"n01440764/x.JPEG")
        IndexEntry(name=b'n01440764/x.JPEG', container=0, offset=1536, length=109648, target=b'')
    """

    def __init__(self, path: Path | str) -> None:
        with open(path, "rb") as file:
            _lock_shared(file.fileno(), path)
            status = os.fstat(file.fileno())
            try:
                check_private(status, path, WRITING)
            except NotPrivate as error:
                raise BadIndex(str(error)) from error
            if status.st_size < _HEADER.size:
                raise BadIndex("it is too short")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # its copy of the descriptor has the lock
        magic, containers, links, self._count, names_nbytes, digest = _HEADER.unpack_from(self._map)
        self._records_at = _HEADER.size + containers * _CONTAINER.size
        self._names_at = self._records_at + (self._count + 1) * _RECORD.size
        if magic != MAGIC or self._names_at + names_nbytes > len(self._map):
            raise BadIndex("it has another form")
        self._notes_at = self._names_at + names_nbytes
        self.has_links = bool(links)
        self.digest: bytes = digest
        self.containers = [
            ContainerVersion(*_CONTAINER.unpack_from(self._map, _HEADER.size + i * _CONTAINER.size))
            for i in range(containers)
        ]

    def __len__(self) -> int:
        return int(self._count)

    def check(self) -> None:
        """See that its bytes are those that were written.

        Raises:
            BadIndex: they are not.
        """
        view = memoryview(self._map)
        try:
            if _digest(view[at : at + _STEP_NBYTES] for at in range(_HEADER.size, len(view), _STEP_NBYTES)) != (
                self.digest
            ):
                raise BadIndex("it is damaged")
        finally:
            view.release()

    @property
    def notes(self) -> Notes:
        """What its making had to say."""
        return Notes.unpack(self._map[self._notes_at :])

    def raw(self, position: int) -> bytes:
        """The name at a position, and what stands behind it."""
        start, end = _TWO_NAMES.unpack_from(self._map, self._records_at + position * _RECORD.size)
        return self._map[self._names_at + start : self._names_at + end]

    def first(self, name: bytes, low: int = 0) -> int:
        """The position of the first name that is not below one."""
        return bisect.bisect_left(range(self._count), name, low, key=self.raw)

    def find(self, name: bytes) -> IndexEntry | None:
        """The entry of a name, if there is one."""
        position = self.first(name)
        if position == self._count:
            return None
        entry = self.entry(position)
        return entry if entry.name == name else None

    def entry(self, position: int) -> IndexEntry:
        """The entry at a position."""
        raw = self.raw(position)
        at = self._records_at + position * _RECORD.size
        _, offset, length, container = _RECORD.unpack_from(self._map, at)
        if container == OBJECT:
            name, _, version = raw.partition(b"\0")
            return IndexEntry(name, OBJECT, length=length, target=version)
        if container == LINK:
            return IndexEntry(raw[:length], LINK, target=raw[length + 1 :])
        name, _, crc = raw.partition(b"\0")
        return IndexEntry(
            name, container, offset, length, b"", int.from_bytes(crc, "little") if crc else None, position
        )

    def __iter__(self) -> Iterator[IndexEntry]:
        return map(self.entry, range(self._count))


NOT_THERE = ContainerVersion(0, 0)
"""Stands for the unpacked pictures of an archive that has none."""


def unpacked_path(index: Path) -> Path:
    """The path of the unpacked pictures of an archive.

    Args:
        index: path of the archive's own index.
    """
    return index.with_suffix(UNPACKED_SUFFIX)


def write_index(
    path: Path,
    containers: Sequence[ContainerVersion],
    entries: Iterable[IndexEntry],
    notes: Callable[[], Notes] = Notes,
) -> None:
    """Write an index, whole or not at all; one that is there and whole is kept, since processes may have it mapped.

    Args:
        path: its file, in a folder that is there, by a name that says what it is the index of.
        containers: the archives, by number.
        entries: in the order of their names.
        notes: called after the last entry.

    Raises:
        OSError: there is no room, say.
    """
    descriptor, made = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(descriptor, "w+b") as file, tempfile.TemporaryFile(dir=path.parent) as names:
            _write(file, names, containers, entries, notes)
        keep_as(Path(made), path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def keep_as(made: Path, path: Path) -> Index:
    """Give a new index its name, under which another process may have put an equal one; the one that is there then.

    Args:
        made: its file, which has no other name afterwards.
        path: its name, in the same folder.

    Raises:
        BadIndex: it is none.
        OSError: it cannot be named.
    """
    try:
        os.link(made, path)  # unlike a replacement, it takes nothing away from those who have the other one open
    except OSError:  # it is there, or this file system has no links
        if (index := open_whole(path)) is not None:
            os.unlink(made)
            return index
        os.replace(made, path)
    else:
        os.unlink(made)
    return Index(path)


def open_whole(path: Path) -> Index | None:
    """An index whose bytes are those that were written; None if it is missing or damaged."""
    try:
        index = Index(path)
        index.check()
    except (OSError, BadIndex):
        return None
    return index


def remove_unused(paths: Iterable[Path], *, older_than_s: float = UNFINISHED_S) -> None:
    """Remove indexes that no process on any host has open.

    Args:
        paths: their files.
        older_than_s: age that they have: a younger one may be about to be opened, or locks may not reach other hosts.
    """
    for path in paths:
        with contextlib.suppress(OSError), path.open("r+b") as file:  # NFS locks only what is open for writing
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime >= older_than_s:
                path.unlink()


def _lock_shared(descriptor: int, path: Path | str) -> None:
    """Have `remove_unused` leave a file, as far as its file system has locks.

    Raises:
        BadIndex: it is being removed.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise BadIndex("it is being removed") from error
    if not os.path.exists(path):
        raise BadIndex("it has been removed")


def _write(
    file: IO[bytes],
    names: IO[bytes],
    containers: Sequence[ContainerVersion],
    entries: Iterable[IndexEntry],
    notes: Callable[[], Notes],
) -> None:
    file.write(bytes(_HEADER.size))
    for version in containers:
        file.write(_CONTAINER.pack(*version))
    count = links = at = 0
    for name, container, offset, length, target, crc, _ in entries:
        raw = name
        if container == LINK:
            raw, length, links = name + b"\0" + target, len(name), 1
        elif container == OBJECT:
            raw = name + b"\0" + target
        elif crc is not None:
            raw = name + b"\0" + crc.to_bytes(4, "little")
        file.write(_RECORD.pack(at, offset, length, container))
        names.write(raw)
        at += len(raw)
        count += 1
    file.write(_RECORD.pack(at, 0, 0, 0))
    names.seek(0)
    while step := names.read(_STEP_NBYTES):
        file.write(step)
    file.write(notes().pack())
    file.seek(_HEADER.size)
    digest = _digest(iter(lambda: file.read(_STEP_NBYTES), b""))
    file.seek(0)
    file.write(_HEADER.pack(MAGIC, len(containers), links, count, at, digest))


def _digest(steps: Iterable[bytes | memoryview]) -> bytes:
    state = xxhash.xxh3_128()
    for step in steps:
        state.update(step)
    return state.digest()
