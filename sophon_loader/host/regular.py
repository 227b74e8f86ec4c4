"""Reads files of unknown kinds, without hanging on a pipe and without trusting the size that `stat` reports."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from sophon_loader.errors import SophonError

ROUNDS = 3
"""Number of looks at a file that is being replaced again and again."""
_STEP_NBYTES = 1 << 16
"""Bytes per read beyond the size that the file system reports."""


def open_regular(path: str) -> int:
    """Open a regular file for reading, and return its descriptor. Never waits for another process.

    Raises:
        OSError: the file does not exist or may not be read, or it is a folder, pipe, socket or device.
    """
    # O_NONBLOCK: opening a pipe must not hang; fstat then refuses it.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(status: os.stat_result, path: str) -> None:
    """Check that an opened file is a regular one.

    Args:
        status: of the opened file.
        path: for the error message.

    Raises:
        OSError: it is a folder, pipe, socket or device.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "file must be a regular one, got a pipe, socket or device", path)


def read_to_end(descriptor: int, nbytes: int, at_most: int | None = None) -> bytes:
    """Read a file to its end. The reported size is only a guess: mounts of object stores, and /proc, report 0 bytes.

    Args:
        descriptor: of the file, positioned at its beginning.
        nbytes: size that `fstat` reports.
        at_most: limit in bytes. Of a longer file more than this many bytes are returned, but not all; None for no
            limit.
    """
    data = os.read(descriptor, nbytes + 1)
    parts, total = [data], len(data)
    while data and (at_most is None or total <= at_most):
        data = os.read(descriptor, _STEP_NBYTES)
        parts.append(data)
        total += len(data)
    return parts[0] if total == len(parts[0]) else b"".join(parts)


def read_below(folder: int, name: str, at_most: int) -> tuple[bytes, os.stat_result]:
    """Read a file of a folder that others may write to; returns its bytes and status. Follows no link and never hangs.

    Args:
        folder: descriptor of the folder.
        name: of the file.
        at_most: as for `read_to_end`.

    Raises:
        OSError: the file does not exist or may not be read, or it is a link, folder, pipe, socket or device.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        check_regular(status, name)
        return read_to_end(descriptor, min(status.st_size, at_most), at_most=at_most), status
    finally:
        os.close(descriptor)


def read_regular(path: str) -> bytes:
    """Read the bytes of a regular file.

    Raises:
        OSError: see `open_regular`.
    """
    descriptor = open_regular(path)
    try:
        return read_to_end(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class Seen(NamedTuple):
    """Identity of a file's version: its size in bytes, device, inode and times. A replaced file has another one."""

    nbytes: int
    device: int
    inode: int
    modified_ns: int
    changed_ns: int


def seen(path: str) -> Seen:
    """Return the current version of a file; reads the file if `stat` reports 0 bytes.

    The file is opened because a network file system may otherwise report a state that is seconds old.

    Raises:
        OSError: see `open_regular`.
    """
    descriptor = open_regular(path)
    try:
        status = os.fstat(descriptor)
        nbytes = status.st_size or len(read_to_end(descriptor, 0))
    finally:
        os.close(descriptor)
    return Seen(nbytes, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def lasting_sizes(path: str, there: Callable[[], int]) -> tuple[int, int] | None:
    """Return (size here, size at the agent) if they differ although the file is not being replaced; otherwise None.

    Args:
        path: of the file here.
        there: asks the agent for the size.

    Raises:
        SophonError: the agent does not report the size.
    """
    for _ in range(ROUNDS):
        try:
            before, told, after = seen(path), there(), seen(path)
        except SophonError:
            raise
        except OSError:  # it is not here any more
            return None
        if told in (before.nbytes, after.nbytes):
            return None
        if before == after:
            return after.nbytes, told
    return None
