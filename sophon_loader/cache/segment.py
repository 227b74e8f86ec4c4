"""One segment of a cache: a data file that only grows, and a table with the position of each file's copy in it.

**Nothing that is read is trusted.** A slot of the table has a checksum, and so has the copy that it points to, seeded
with its key. A copy that is torn, flipped, truncated or misplaced is therefore not found, and the file is read from its
source. So nothing needs to reach the disk in order, and a process may die at any point.

A slot's checksum is seeded, too: with `OWN` if this host has read the file. If an agent has sent it, the seed is the
number of withdrawals (`Withdrawals`) by then. A look-up names the current number, so a slot with an earlier one is not
found.

**Writing.** One process at a time holds the segment's lock, only while it writes one copy. It first records the new
end, then writes the data, then the slot. If it dies in between, the space is lost, and no slot points to data that is
overwritten. If the recorded end cannot be read, the segment is filled from its beginning again; old slots then point to
other data, and fail their checksum.

**Reading** uses `pread`, not a mapping: truncating a file would kill a process that has it mapped.

    N.data   4 096 bytes: magic, end, checksum of both; then the copies one after another, in preallocated space
    N.table  levels of buckets of 64 slots of 64 bytes; a full bucket overflows to the next level, eight times as large.
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
"""Version of the folder's format."""
SEGMENTS = 8
"""Number of segments of a cache."""
_MAGIC = b"sophon.1"
_END = struct.Struct("<8sQQ")
FIRST = 4096
"""Offset of the first copy."""
_SLOT = struct.Struct("<16sQQqqQQ")
_SLOTS = 64
_BUCKET_NBYTES = _SLOTS * _SLOT.size
_LEVELS = [64 * 8**level for level in range(5)]
"""Number of buckets of each level; together about 19 million slots."""
_STARTS = [_BUCKET_NBYTES * sum(_LEVELS[:level]) for level in range(len(_LEVELS))]
_EMPTY = bytes(16)
OWN = (1 << 64) - 1
"""Seal of a copy that this host has read itself."""
STEP_NBYTES = 64 << 20
"""Bytes of one allocation of disk space; smaller segments allocate an eighth of their size."""
_TRIES, _TRY_S = 10, 0.0002
"""Number of further attempts to take the lock, and the pause between them, s. Writing a file takes about 100 us."""
KEEP_SHARE, KEEP_NBYTES = 0.05, 10 * 10**9
"""Share of the disk, and bytes, to leave free; the smaller one applies."""


class FileVersion(NamedTuple):
    """Identity of a file's version: a file that replaces another under the same name has a different one."""

    nbytes: int
    modified_ns: int
    changed_ns: int


class SegmentEntry(NamedTuple):
    """Content of a slot: digest of the key, position of the copy, version of the file, checksum of the copy."""

    digest: bytes
    offset: int
    version: FileVersion
    check: int


class Segment:
    """One segment of a cache, opened by one process. A forked process must open it again, because of the lock.

    Args:
        folder: folder of the cache.
        number: of the segment.
        for_reading: True to neither create nor write the files.

    Raises:
        NotPrivate: folder or file belong to another user, or others can access them.
        OSError: the files do not exist and cannot be created.

    Example:
        >>> segment = Segment("/nvme/sophon/sophon-cache-1", 0)
        >>> segment.put(digest, version, data, limit_nbytes=1 << 30)
        True
        >>> segment.data(segment.find(digest)) == data
        True
    """

    _data = _table = -1
    """Values for `__del__` if `__init__` has raised."""

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
        """Close the files. They are also closed when the segment is garbage-collected."""
        opened, self._data, self._table = (self._data, self._table), -1, -1
        for descriptor in opened:
            if descriptor >= 0:
                os.close(descriptor)

    __del__ = close

    def find(self, digest: bytes, withdrawn: int = 0) -> SegmentEntry | None:
        """Return the entry of a key's digest; None if there is none.

        Args:
            digest: of the key.
            withdrawn: current number of withdrawals; copies that agents sent before the last one are not found.

        Raises:
            OSError: the disk cannot be read.
        """
        found = self._place(digest)[1]
        return None if found is None else _entry(found, withdrawn)

    def data(self, entry: SegmentEntry) -> bytes | None:
        """Return the copy that an entry points to; None if its checksum differs.

        Raises:
            OSError: the disk cannot be read.
        """
        nbytes = entry.version.nbytes
        data = os.pread(self._data, nbytes, entry.offset)
        return data if len(data) == nbytes and _check(entry.digest, data) == entry.check else None

    def put(self, digest: bytes, version: FileVersion, data: Payload, limit_nbytes: int, seal: int = OWN) -> bool:
        """Store a copy; True if it was stored. An earlier copy under the digest is no longer found.

        Args:
            digest: of its key, 16 bytes.
            version: of the file.
            data: bytes of the file.
            limit_nbytes: size limit of the segment.
            seal: `OWN`; or, if an agent has sent the file, the number of withdrawals when it was requested.

        Raises:
            BlockingIOError: other processes hold the lock for longer than usual.
            OSError: the disk is full, or cannot be written.
        """
        if not self.writable:
            return False
        self._lock()
        try:
            place, found = self._place(digest)
            check = _check(digest, data)
            if place is not None and found is not None and (there := self._same(found, len(data), check)) is not None:
                # Another process was quicker, a new owner or hard link changed the file's times, or the copy was
                # withdrawn and now comes from an agent with the right files.
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
        """Yield all entries that can be read.

        Args:
            withdrawn: as for `find`.

        Raises:
            OSError: the disk cannot be read.
        """
        size, at = os.fstat(self._table).st_size, 0
        while at < size:
            with contextlib.suppress(OSError, AttributeError):  # not every file system reports holes
                at = os.lseek(self._table, at, os.SEEK_DATA) // _BUCKET_NBYTES * _BUCKET_NBYTES
            bucket = os.pread(self._table, _BUCKET_NBYTES, at)
            for start in range(0, len(bucket), _SLOT.size):
                entry = _entry(bucket[start : start + _SLOT.size], withdrawn)
                if entry is not None:
                    yield entry
            at += _BUCKET_NBYTES

    @property
    def nbytes(self) -> int:
        """Disk space that the files take, bytes."""
        return sum(os.fstat(one).st_blocks * 512 for one in (self._data, self._table))

    def _same(self, slot: bytes, nbytes: int, check: int) -> SegmentEntry | None:
        """Return the entry of a slot, with any seal, if its copy is intact and equals the data to be written.

        Args:
            slot: bytes of the slot.
            nbytes: size of the data to be written.
            check: checksum of that data.
        """
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
        """Find a digest in the table: (position at which its slot is or may be written, bytes of the slot if it
        exists)."""
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
        """Return the offset of the next copy."""
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
        """True if the data may extend to `end`; allocates disk space if necessary.

        Raises:
            OSError: the disk is full.
        """
        status, table = os.fstat(self._data), os.fstat(self._table).st_blocks * 512 + _BUCKET_NBYTES
        limit_nbytes -= table
        if end > limit_nbytes:
            return False
        if end <= status.st_size:
            return True
        if not status.st_nlink:
            return False  # the cache was removed
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
    """Return the path of this user's cache of the current format, inside the folder that the user has named."""
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
    """Return the offset of the slot with a digest in a bucket; -1 if there is none."""
    at = bucket.find(digest)
    while at >= 0 and at % _SLOT.size:
        at = bucket.find(digest, at + 1)
    return at if 0 <= at <= len(bucket) - _SLOT.size else -1


def _slot(entry: SegmentEntry, seal: int) -> bytes:
    head = _SLOT.pack(entry.digest, entry.offset, *entry.version, entry.check, 0)[:-8]
    return head + xxh3_64_intdigest(head, seal).to_bytes(8, "little")


def _entry(slot: bytes, withdrawn: int) -> SegmentEntry | None:
    """Decode a slot; None if it is empty or damaged, or its copy was withdrawn."""
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
