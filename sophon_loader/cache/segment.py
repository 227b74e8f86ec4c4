"""One segment of a cache: a file of data that only grows, and a table that says where in it a file's copy lies.

**Nothing that is read is trusted.** A slot of the table has a checksum, and so has what it points to, seeded with its
key. So whatever is torn, flipped, cut off or put in another's place is not found, and the file is read where it came
from. Hence nothing needs to be brought to the disk in order, and a process may die anywhere.

A slot's checksum is seeded, too: with `OWN` where this host has read the file, else with how often files that agents
have sent were withdrawn by then (`Withdrawals`). A look-up names the count of now: a slot with an earlier one is not
found.

**Writing.** One process at a time has the segment's lock, and only while it writes one copy. It first notes the new
end, then writes the data, then the slot: what dies in between loses the place, and no slot points to what is
overwritten. If the noted end cannot be read, the segment is filled from its beginning: slots then point to other data,
and find nothing.

**Reading** is by `pread`, not by a mapping: a file that somebody cuts off would kill the process that has it mapped.

    N.data   4 096 bytes: magic, end, checksum of both; then copies, one behind the other, in space that is allocated
    N.table  levels of buckets of 64 slots of 64 bytes; a full bucket goes on in the next level, eight times as large.
             It is sparse: only buckets in use take space.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from sophon_loader.encodings.encoding import Payload
from sophon_loader.host.private import NotPrivate, open_private_file, open_private_folder

FORMAT = 1
"""Of the folder."""
SEGMENTS = 8
"""Segments of a cache."""
_MAGIC = b"sophon.1"
_END = struct.Struct("<8sQQ")
FIRST = 4096
"""Where the first copy lies."""
_SLOT = struct.Struct("<16sQQqqQQ")
_SLOTS = 64
_BUCKET_NBYTES = _SLOTS * _SLOT.size
_LEVELS = [64 * 8**level for level in range(5)]
"""Buckets of each; together some 19 million slots."""
_STARTS = [_BUCKET_NBYTES * sum(_LEVELS[:level]) for level in range(len(_LEVELS))]
_EMPTY = bytes(16)
OWN = (1 << 64) - 1
"""The seal of a copy that this host has read itself."""
STEP_NBYTES = 64 << 20
"""Space is allocated in such steps, or in eighths of a smaller segment."""
_TRIES, _TRY_S = 10, 0.0002
"""How often the lock is tried again, and how long after, s: writing a file takes some 100 us."""
KEEP_SHARE, KEEP_NBYTES = 0.05, 10 * 10**9
"""What stays free of the disk: the lesser of the two."""


class FileVersion(NamedTuple):
    """What tells a file from the one that takes its place under the same name."""

    nbytes: int
    modified_ns: int
    changed_ns: int


class SegmentEntry(NamedTuple):
    """A slot: the digest of a key, and what is kept under it."""

    digest: bytes
    offset: int
    version: FileVersion
    check: int


class Segment:
    """One of the segments of a cache, opened by one process; a forked one must open its own, because of the lock.

    Args:
        folder: that it lies in.
        number: of the segment.
        for_reading: it is neither made nor written to.

    Raises:
        NotPrivate: folder or file belong to another user, or others may reach them.
        OSError: it is not there and cannot be made.

    Example:
        >>> segment = Segment("/nvme/sophon/sophon-cache-1", 0)
        >>> segment.put(digest, version, data, limit_nbytes=1 << 30)
        True
        >>> segment.data(segment.find(digest)) == data
        True
    """

    _data = _table = -1
    """What `__del__` finds where `__init__` has raised."""

    def __init__(self, folder: str, number: int, *, for_reading: bool = False) -> None:
        names = [f"{number}.{what}" for what in ("data", "table")]
        self.writable = not for_reading
        within = open_private_folder(folder)
        try:
            self._data, self._table = _opened(within, names, os.O_RDONLY if for_reading else os.O_RDWR | os.O_CREAT)
        except NotPrivate:
            raise
        except OSError:
            if for_reading:
                raise
            self.writable = False  # a disk that has become read-only
            self._data, self._table = _opened(within, names, os.O_RDONLY)
        finally:
            os.close(within)

    def close(self) -> None:
        """Close its files; they are closed, too, when nobody refers to the segment."""
        opened, self._data, self._table = (self._data, self._table), -1, -1
        for descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)

    __del__ = close

    def find(self, digest: bytes, withdrawn: int = 0) -> SegmentEntry | None:
        """What is kept under the digest of a key, if anything is.

        Args:
            digest: of the key.
            withdrawn: how often what agents have sent was withdrawn; what they had sent before is not found.

        Raises:
            OSError: the disk cannot be read.
        """
        found = self._place(digest)[1]
        return None if found is None else _entry(found, withdrawn)

    def data(self, entry: SegmentEntry) -> bytes | None:
        """The copy that a slot points to; None if it is not what was written.

        Raises:
            OSError: the disk cannot be read.
        """
        nbytes = entry.version.nbytes
        data = os.pread(self._data, nbytes, entry.offset)
        return data if len(data) == nbytes and _check(entry.digest, data) == entry.check else None

    def put(self, digest: bytes, version: FileVersion, data: Payload, limit_nbytes: int, seal: int = OWN) -> bool:
        """Keep a copy; whether that was possible. What was kept under the digest before is not found any more.

        Args:
            digest: of its key, 16 bytes.
            version: of the file.
            data: the file.
            limit_nbytes: of the segment.
            seal: `OWN`, or if an agent has sent it, how often such files were withdrawn when it was asked for.

        Raises:
            BlockingIOError: other processes write to the segment, for longer than they usually take.
            OSError: the disk is full, or cannot be written.
        """
        if not self.writable:
            return False
        self._lock()
        try:
            place, found = self._place(digest)
            check = _check(digest, data)
            if place is not None and found is not None and (there := self._same(found, len(data), check)) is not None:
                # Another process was quicker, somebody has given all files another owner or one more name, or it was
                # withdrawn and comes from an agent that was mended.
                _write(self._table, _slot(there._replace(version=version), seal), place)
                return True
            end = self._end()
            if place is None or not self._has_room(end + len(data), limit_nbytes):
                return False
            self._note_end(end + len(data))
            _write(self._data, data, end)
            _write(self._table, _slot(SegmentEntry(digest, end, version, check), seal), place)
            return True
        finally:
            fcntl.flock(self._data, fcntl.LOCK_UN)

    def entries(self, withdrawn: int = 0) -> Iterator[SegmentEntry]:
        """All slots that can be read.

        Args:
            withdrawn: as of `find`.

        Raises:
            OSError: the disk cannot be read.
        """
        size, at = os.fstat(self._table).st_size, 0
        while at < size:
            with contextlib.suppress(OSError, AttributeError):  # not every file system tells of holes
                at = os.lseek(self._table, at, os.SEEK_DATA) // _BUCKET_NBYTES * _BUCKET_NBYTES
            bucket = os.pread(self._table, _BUCKET_NBYTES, at)
            for start in range(0, len(bucket), _SLOT.size):
                entry = _entry(bucket[start : start + _SLOT.size], withdrawn)
                if entry is not None:
                    yield entry
            at += _BUCKET_NBYTES

    @property
    def nbytes(self) -> int:
        """Space that it takes on the disk."""
        return sum(os.fstat(one).st_blocks * 512 for one in (self._data, self._table))

    def _same(self, slot: bytes, nbytes: int, check: int) -> SegmentEntry | None:
        """What a slot points to, whatever its seal, if that is there and is what is to be written."""
        there = _unpacked(slot)
        fits = there.version.nbytes == nbytes and there.offset + nbytes <= os.fstat(self._data).st_size
        return there if fits and there.check == check and self.data(there) is not None else None

    def _lock(self) -> None:
        for last in [False] * _TRIES + [True]:
            try:
                fcntl.flock(self._data, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if last:
                    raise
                time.sleep(_TRY_S)
            else:
                return

    def _place(self, digest: bytes) -> tuple[int | None, bytes | None]:
        """Where in the table the slot of a digest is or may be written, and the slot itself if it is there."""
        number = int.from_bytes(digest[8:], "little") >> 8
        for start, buckets in zip(_STARTS, _LEVELS, strict=True):
            at = start + number % buckets * _BUCKET_NBYTES
            bucket = os.pread(self._table, _BUCKET_NBYTES, at)
            if (found := _slot_with(digest, bucket)) >= 0:
                return at + found, bucket[found : found + _SLOT.size]
            if (free := _slot_with(_EMPTY, bucket)) >= 0:
                return at + free, None
            if len(bucket) < _BUCKET_NBYTES:
                return at + len(bucket) // _SLOT.size * _SLOT.size, None
        return None, None

    def _end(self) -> int:
        """Where the next copy goes."""
        header = os.pread(self._data, _END.size, 0)
        if len(header) == _END.size:
            magic, end, check = _END.unpack(header)
            if magic == _MAGIC and check == xxh3_64_intdigest(header[:16]):
                return int(end)
        return FIRST

    def _note_end(self, end: int) -> None:
        head = _MAGIC + end.to_bytes(8, "little")
        _write(self._data, head + xxh3_64_intdigest(head).to_bytes(8, "little"), 0)

    def _has_room(self, end: int, limit_nbytes: int) -> bool:
        """Whether the data may reach to `end`; allocates space if need be.

        Raises:
            OSError: the disk has none.
        """
        status, table = os.fstat(self._data), os.fstat(self._table).st_blocks * 512 + _BUCKET_NBYTES
        limit_nbytes -= table
        if end > limit_nbytes:
            return False
        if end <= status.st_size:
            return True
        if not status.st_nlink:
            return False  # somebody has removed the cache
        step = min(STEP_NBYTES, limit_nbytes // 8)
        disk = os.fstatvfs(self._data)
        free = disk.f_bavail * disk.f_frsize - int(min(disk.f_blocks * disk.f_frsize * KEEP_SHARE, KEEP_NBYTES))
        for target in (min(status.st_size + step, limit_nbytes), end):
            if target >= end and target - status.st_size <= free:
                try:
                    os.posix_fallocate(self._data, status.st_size, target - status.st_size)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.ftruncate(self._data, status.st_size)  # what was allocated of it
                    raise
                return True
        return False


def own_folder(folder: str) -> str:
    """Where this user's cache of today's format lies in the folder that a user has named."""
    return os.path.join(os.path.abspath(folder), f"sophon-cache-{FORMAT}-uid{os.getuid()}")


def _opened(folder: int, names: list[str], flags: int) -> list[int]:
    found: list[int] = []
    try:
        for name in names:
            found.append(open_private_file(folder, name, flags))
    except OSError:
        for one in found:
            os.close(one)
        raise
    return found


def _slot_with(digest: bytes, bucket: bytes) -> int:
    """Where in a bucket a slot with a digest begins; -1 if none does."""
    at = bucket.find(digest)
    while at >= 0 and at % _SLOT.size:
        at = bucket.find(digest, at + 1)
    return at if 0 <= at <= len(bucket) - _SLOT.size else -1


def _slot(entry: SegmentEntry, seal: int) -> bytes:
    head = _SLOT.pack(entry.digest, entry.offset, *entry.version, entry.check, 0)[:-8]
    return head + xxh3_64_intdigest(head, seal).to_bytes(8, "little")


def _entry(slot: bytes, withdrawn: int) -> SegmentEntry | None:
    """What a slot says; None if it is empty or damaged, or what it points to was withdrawn."""
    if len(slot) < _SLOT.size or slot[:16] == _EMPTY:
        return None
    of_slot = int.from_bytes(slot[-8:], "little")
    if of_slot not in (xxh3_64_intdigest(slot[:-8], withdrawn), xxh3_64_intdigest(slot[:-8], OWN)):
        return None
    return _unpacked(slot)


def _unpacked(slot: bytes) -> SegmentEntry:
    digest, offset, nbytes, modified_ns, changed_ns, check, _ = _SLOT.unpack(slot)
    return SegmentEntry(digest, offset, FileVersion(nbytes, modified_ns, changed_ns), check)


def _check(digest: bytes, data: Payload) -> int:
    return int(xxh3_64_intdigest(data, int.from_bytes(digest[:8], "little")))


def _write(descriptor: int, data: Payload, at: int) -> None:
    view = memoryview(data)
    while len(view):
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
