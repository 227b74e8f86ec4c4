"""Whole files that are kept on this host: which ones, in which segment, and within what room and time.

**Which ones.** A file is kept if the hash of its key is below a share: the room, by the bytes of the whole set. Nothing
is deleted to make place. So all processes of a host agree without talking, and a share of the set is found in every
epoch but the first, in whatever order it is read. A cache that lets go of what was used least recently finds far less
in shuffled epochs: 0.15 instead of 0.50 with room for half of the set.

**What agents have sent** is not found any more once one of them was found to have other files, whichever loader has
found that; what this host has read itself stays (`withdrawals.py`).

**What does no harm.** Whatever is wrong with the disk, a file is read where it came from. Writing may take 3 % of a
process's time; a disk that is slower than that keeps fewer files.
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
"""Larger files are not kept: they cannot be read at once."""
_ROOM = 0.97
"""Share of the room that is given out: tables take some of it, and the mean size of files is an estimate."""
_TIME_SHARE, _MOST_S = 0.03, 0.5
"""Of a process's time that writing may take, and how much of it may be saved up, s."""
_PAUSE_S = 30.0
"""Nothing is written for so long after the disk has refused, or lacked room."""


class Cache:
    """Files that are kept on this host. Each process, also a forked one, opens the segments for itself.

    Args:
        folder: the user's; the cache is a folder of this user's in it.
        nbytes: that it may take, shared by all that use the folder.
        set_nbytes: bytes of all files, as well as they are known; 0 for unknown: what there is room for is kept then.
        content: what agents say of the content of an export whose files are not mounted here; "" where they are.

    Attributes:
        share: of all keys, that is to be kept; 0 while it is not used.
        why_not: why it is not used; "" while it is.
        reads: those of all processes of the loader; say whether the cache is left alone from now on.
        told: whether the user knows that it is.

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
        """Of the process that has opened the segments."""
        self.reads, self.told = Reads(), False
        self.why_not, self._withdrawn = make_private(self.folder)
        """The second: how often what agents have sent was withdrawn until now, and so before the agents of this loader
        were asked for anything."""
        self.share = 0.0 if self.why_not else min(1.0, nbytes * _ROOM / max(1, set_nbytes))

    def has(self, key: str) -> bool:
        """Whether a version of a file is kept, whichever."""
        return self.version(key) is not None

    def version(self, key: str) -> FileVersion | None:
        """In which version a file is kept; None if it is not."""
        entry = self._looked_up(key, None)[0]
        return None if entry is None else entry.version

    def admits(self, key: str) -> bool:
        """Whether a file is one of those to keep, and there is time to write it."""
        if _place(_digest(key)) >= self.share or self.reads.left_alone:
            return False
        now_s = time.monotonic()
        self._saved_s = min(_MOST_S, self._saved_s + (now_s - self._since_s) * _TIME_SHARE)
        self._since_s = now_s
        return self._saved_s > 0 and now_s >= self._paused_until_s

    def get(self, key: str, version: FileVersion) -> bytes | None:
        """A file; None if it is not kept in this version, or not as it was written."""
        return self._looked_up(key, version)[1]

    def _looked_up(self, key: str, version: FileVersion | None) -> tuple[SegmentEntry | None, bytes | None]:
        """What is kept of a file, and its bytes if that is a certain version of it."""
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
        """Keep a file, if it is to be kept and that can be done; whether it is.

        Args:
            key: the file's.
            version: both before it was read and after.
            data: its bytes.
            young_s: it is not kept if it was changed within so many seconds.
            sent: whether it is from an agent. It is not kept if such files were withdrawn since this loader was made:
                its agents may be those that were found out.
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
        """What agents have sent until now is not found any more, by any loader; whether that could be written down."""
        if self.why_not or self.reads.exchanged:
            return True
        if self.reads.stuck:
            return False
        try:
            self._of_this_process()
            if self._withdrawals is None:
                self._withdrawals = Withdrawals(self.folder)
            self._withdrawals.add()
        except FileNotFoundError:  # somebody has removed the cache
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
        """How often what agents have sent was withdrawn."""
        assert self._withdrawals is not None, "it is opened before the segments"
        return self._withdrawals.count

    def _close_inherited(self) -> None:
        for one in (*self._opened[1].values(), self._withdrawals):
            if one is not None:
                one.close()

    def _of_this_process(self) -> dict[int, Segment | None]:
        """The segments that this process has opened."""
        if self._opened[0] != os.getpid():  # forked since: what it has inherited is closed with its parent's lock kept
            self._close_inherited()
            self._opened, self._withdrawals = (os.getpid(), {}), None
            self._since_s = time.monotonic()
        return self._opened[1]

    def _segment(self, digest: bytes) -> Segment | None:
        """Where a key belongs; None if that cannot be opened."""
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
    """Make a folder that only this user can reach; why there is none, or "", and how often what agents have sent was
    withdrawn from the cache in it.

    Args:
        folder: its path; the folder above it is made too, but none above that, which may be a disk that is not mounted.
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
    """A number in [0, 1) by which a key is taken in one epoch or another, the same in all processes of all ranks."""
    return xxh3_64_intdigest(os.fsencode(key), 1 + epoch) / 2**64


def _digest(key: str) -> bytes:
    return xxh3_128_digest(os.fsencode(key))


def _place(digest: bytes) -> float:
    """Where a key lies between 0 and 1; its segment and its place in there are of the digest's other half."""
    return int.from_bytes(digest[:8], "little") / 2**64


def version_of(status: os.stat_result) -> FileVersion:
    """What tells a file from the one that takes its place."""
    return FileVersion(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
