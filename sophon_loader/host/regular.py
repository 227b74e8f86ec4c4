"""Reading files of which nobody knows what they are: without waiting for ever, and whatever their `stat` says."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from sophon_loader.errors import SophonError

ROUNDS = 3
"""How often to look again at a file that is being replaced all the time."""
_STEP_NBYTES = 1 << 16
"""What is asked for at a time behind the size that a file is said to have."""


def open_regular(path: str) -> int:
    """A descriptor of a file to read; never waits for another process.

    Raises:
        OSError: there is no file, it may not be read, or it is a folder, pipe, socket or device.
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
    """See that a file is one that has an end.

    Raises:
        OSError: it is a folder, pipe, socket or device.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "file must be a regular one, got a pipe, socket or device", path)


def read_to_end(descriptor: int, nbytes: int, at_most: int | None = None) -> bytes:
    """What a file holds. Its size is only a guess: mounts of object stores, and /proc, say 0 bytes of all files.

    Args:
        descriptor: at its beginning.
        nbytes: as `fstat` says.
        at_most: when there is more, only the beginning is read, longer than so many bytes; None for no limit.
    """
    data = os.read(descriptor, nbytes + 1)
    parts, total = [data], len(data)
    while data and (at_most is None or total <= at_most):
        data = os.read(descriptor, _STEP_NBYTES)
        parts.append(data)
        total += len(data)
    return parts[0] if total == len(parts[0]) else b"".join(parts)


def read_below(folder: int, name: str, at_most: int) -> tuple[bytes, os.stat_result]:
    """A file of a folder that anybody may write to, and what it was like: no link is followed, nobody is waited for.

    Args:
        folder: its descriptor.
        name: of the file.
        at_most: as of `read_to_end`.

    Raises:
        OSError: there is no file, it may not be read, or it is a link, folder, pipe, socket or device.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        check_regular(status, name)
        return read_to_end(descriptor, min(status.st_size, at_most), at_most=at_most), status
    finally:
        os.close(descriptor)


def read_regular(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: see `open_regular`.
    """
    descriptor = open_regular(path)
    try:
        return read_to_end(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


class Seen(NamedTuple):
    """What tells a file from the one that takes its place: its size in bytes, and what the file system knows it by."""

    nbytes: int
    device: int
    inode: int
    modified_ns: int
    changed_ns: int


def seen(path: str) -> Seen:
    """A file as it is now; looks into it where `stat` says 0 bytes.

    It is opened for that: a network file system may tell of others what was so some seconds ago.

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
    """The sizes of a file here and at the agent, where they differ although nobody is replacing it; None elsewhere.

    Args:
        path: of the file here.
        there: asks the agent for the size.

    Raises:
        SophonError: the agent does not say it.
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
