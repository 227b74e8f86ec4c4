"""A cache of whole files on this host: which files it holds, in which segment, and its limits on space and time.

**Which files.** A file is cached if the hash of its key is below a share: the cache's size divided by the size of the
data set. Nothing is evicted. So all processes of a host agree without communication, and that share of the set is found
in every epoch but the first, in any order. A cache that evicts the least recently used file finds far less in shuffled
epochs: 0.15 instead of 0.50 with room for half of the set.

**Copies from agents** are no longer found once any loader has seen one of the agents serve other files. Copies that
this host has read itself stay (`withdrawals.py`).

**Failures are harmless.** If the disk fails, a file is read from its source. Writing may take 3 % of a process's time;
on a disk slower than that, fewer files are cached.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import Any

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from sophon_loader.cache.segment import OWN, SEGMENTS, FileVersion, Segment, SegmentEntry, own_folder
from sophon_loader.cache.stuck import Reads
from sophon_loader.cache.withdrawals import Withdrawals
from sophon_loader.encodings.encoding import Payload
from sophon_loader.host.private import NotPrivate
from sophon_loader.logs import log_line

log = logging.getLogger(__name__)

MAX_FILE_NBYTES = 1 << 30
"""Size limit of a file, bytes. Larger files are not cached, because they cannot be read at once."""
_ROOM = 0.97
"""Share of the space that files may take. Tables need some of it, and the mean file size is an estimate."""
_TIME_SHARE, _MOST_S = 0.03, 0.5
"""Share of a process's time for writing, and the maximum time that may be saved up, s."""
_PAUSE_S = 30.0
"""Seconds without writing after the disk has refused a write or was full."""


class Cache:
    """Files cached on this host. Each process, also a forked one, opens the segments for itself.

    Args:
        folder: the user's folder; the cache is a folder of this user's inside it.
        nbytes: size limit, shared by all users of the folder.
        set_nbytes: estimated bytes of all files; 0 if unknown, and then as much is cached as there is room for.
        content: identity of the export's content as agents report it, if its files are not mounted here; otherwise "".

    Attributes:
        share: share of all keys to be cached; 0 while the cache is not used.
        why_not: reason why the cache is not used; "" while it is.
        reads: reads in progress, of all processes of the loader; knows if the cache is left alone from now on.
        told: True once the user was warned that the cache is left alone.

    Example:
        >>> cache = Cache("/nvme/sophon", 200 * 10**9, set_nbytes=140 * 10**9)
        >>> cache.put("/data/cat/1.jpg", version, data)
        >>> cache.get("/data/cat/1.jpg", version) == data
        True
    """

    def __init__(self, folder: str, nbytes: int, set_nbytes: int = 0, content: str = "") -> None:
        self.folder, self._nbytes, self.content = own_folder(folder), nbytes, content
        self._saved_s, self._since_s = _MOST_S, time.monotonic()
        self._paused_until_s = 0.0
        self._opened: tuple[int, dict[int, Segment | None]] = 0, {}
        self._withdrawals: Withdrawals | None = None
        """Count of withdrawals, opened by the process that opened the segments."""
        self.reads, self.told = Reads(), False
        self.why_not, self._withdrawn = make_private(self.folder)
        """`_withdrawn`: number of withdrawals before this loader asked its agents for anything."""
        self.share = 0.0 if self.why_not else min(1.0, nbytes * _ROOM / max(1, set_nbytes))

    def has(self, key: str) -> bool:
        """True if any version of a file is cached."""
        return self.version(key) is not None

    def version(self, key: str) -> FileVersion | None:
        """Return the cached version of a file; None if the file is not cached."""
        entry = self._looked_up(key, None)[0]
        return None if entry is None else entry.version

    def admits(self, key: str) -> bool:
        """True if a file belongs to the cached share, and there is time left for writing it."""
        if _place(_digest(key)) >= self.share or self.reads.left_alone:
            return False
        now_s = time.monotonic()
        self._saved_s = min(_MOST_S, self._saved_s + (now_s - self._since_s) * _TIME_SHARE)
        self._since_s = now_s
        return self._saved_s > 0 and now_s >= self._paused_until_s

    def get(self, key: str, version: FileVersion) -> bytes | None:
        """Return a file's bytes; None if this version is not cached, or the copy is damaged.

        Args:
            key: of the file.
            version: the current version of the file.
        """
        return self._looked_up(key, version)[1]

    def _looked_up(self, key: str, version: FileVersion | None) -> tuple[SegmentEntry | None, bytes | None]:
        """Return a file's entry, and its bytes if the entry has this version."""
        digest, data = _digest(key), None
        began_s = self.reads.begin()
        try:
            segment = self._segment(digest)
            entry = None if segment is None else segment.find(digest, self._count())
            if segment is not None and entry is not None and entry.version == version:
                data = segment.data(entry)
        except OSError:
            return None, None
        finally:
            self.reads.end(began_s)
        return entry, data

    def put(self, key: str, version: FileVersion, data: Payload, young_s: float = 0.0, *, sent: bool = False) -> bool:
        """Cache a file if it belongs to the cached share and can be written; True if it was cached.

        Args:
            key: of the file.
            version: of the file, the same before and after it was read.
            data: its bytes.
            young_s: a file that was changed within this many seconds is not cached.
            sent: True if an agent has sent the file. It is not cached if copies from agents were withdrawn since this
                loader was made: its agents may be the ones that served other files.
        """
        nbytes = len(data)
        now_s = time.time()
        young = any(abs(now_s - one / 1e9) < young_s for one in (version.modified_ns, version.changed_ns))
        if young or nbytes != version.nbytes or not 0 < nbytes <= MAX_FILE_NBYTES or not self.admits(key):
            return False
        digest, began_s = _digest(key), time.monotonic()
        kept = False
        try:
            segment = self._segment(digest)
            if segment is not None and not (sent and self._count() != self._withdrawn):
                seal = self._withdrawn if sent else OWN
                kept = segment.put(digest, version, data, self._nbytes // SEGMENTS, seal)
        except BlockingIOError:  # another process writes there
            pass
        except OSError as error:
            self._pause(str(error))
        self._saved_s -= time.monotonic() - began_s
        return kept

    def withdraw_sent(self) -> bool:
        """Withdraw all copies that agents have sent so far, for all loaders; False if that could not be recorded on
        disk."""
        if self.why_not or self.reads.exchanged:
            return True
        if self.reads.stuck:
            return False
        try:
            self._of_this_process()
            if self._withdrawals is None:
                self._withdrawals = Withdrawals(self.folder)
            self._withdrawals.add()
        except FileNotFoundError:  # the cache was removed
            return True
        except OSError as error:
            log.warning(log_line("cache not withdrawn", folder=self.folder, reason=str(error)))
            return False
        return True

    def close(self) -> None:
        """Close this process's segments."""
        if self._opened[0] == os.getpid():
            self._close_inherited()
        self._opened, self._withdrawals = (0, {}), None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": (0, {}), "_withdrawals": None}

    def _count(self) -> int:
        """Return the number of withdrawals."""
        assert self._withdrawals is not None, "it is opened before the segments"
        return self._withdrawals.count

    def _close_inherited(self) -> None:
        for one in (*self._opened[1].values(), self._withdrawals):
            if one is not None:
                one.close()

    def _of_this_process(self) -> dict[int, Segment | None]:
        """Return the segments that this process has opened, by number."""
        if self._opened[0] != os.getpid():  # forked since: what it has inherited is closed with its parent's lock kept
            self._close_inherited()
            self._opened, self._withdrawals = (os.getpid(), {}), None
            self._since_s = time.monotonic()
        return self._opened[1]

    def _segment(self, digest: bytes) -> Segment | None:
        """Return the segment that a key belongs to; None if it cannot be opened."""
        if self.why_not or self.reads.left_alone:
            return None
        segments, number = self._of_this_process(), digest[8] % SEGMENTS
        if number not in segments:
            segments[number] = None
            try:
                if self._withdrawals is None:
                    self._withdrawals = Withdrawals(self.folder)
                segments[number] = Segment(self.folder, number)
            except NotPrivate as error:
                self.reads.note_exchanged()
                log.warning(log_line("cache left alone", folder=self.folder, reason=str(error)))
            except OSError as error:
                self._pause(str(error))
        return segments[number]

    def _pause(self, reason: str) -> None:
        if not self._paused_until_s:
            log.warning(log_line("cache does not grow", folder=self.folder, reason=reason))
        self._paused_until_s = time.monotonic() + _PAUSE_S


def make_private(folder: str) -> tuple[str, int]:
    """Make a folder that only this user can access.

    Args:
        folder: its path. The folder above is made too, but none above that, which may be a disk that is not mounted.

    Returns:
        The reason why the folder cannot be used, or "", and the number of withdrawals from the cache in it.
    """
    above = os.path.dirname(folder)
    try:
        for one in (above, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(one, 0o700)
        withdrawals = Withdrawals(folder)
    except NotPrivate:
        return f"{folder} must be a folder that this user alone can reach; remove it, or name another place", 0
    except OSError as error:
        why_not = f"{folder} cannot be made ({error.strerror}); name a folder on a disk of this host"
        return f"{why_not} that you may write to", 0
    count = withdrawals.count
    withdrawals.close()
    return "", count


def drawn(key: str, epoch: int) -> float:
    """Return a number in [0, 1) that decides if a key is taken in an epoch. It is equal in all processes of all ranks.

    Args:
        key: of the file.
        epoch: number of the epoch.
    """
    return xxh3_64_intdigest(os.fsencode(key), 1 + epoch) / 2**64


def _digest(key: str) -> bytes:
    return xxh3_128_digest(os.fsencode(key))


def _place(digest: bytes) -> float:
    """Return a key's position in [0, 1). Its segment and its slot come from the digest's other half."""
    return int.from_bytes(digest[:8], "little") / 2**64


def version_of(status: os.stat_result) -> FileVersion:
    """Return the version that identifies a file's content, from its status."""
    return FileVersion(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
