"""Number of times that a cache has lost trust in copies from agents: each time that an agent was found to serve other
files.

The number is the size of a file in the cache's folder, to which each withdrawal appends a byte. So processes need no
lock, and a process that is killed has either added its byte or not. Copies from agents carry the number of their time
(`Segment`), and are found only while it is still the current one.
"""

from __future__ import annotations

import os

from sophon_loader.host.private import NotPrivate, open_private_file, open_private_folder

NAME = "withdrawals"


class Withdrawals:
    """The number of withdrawals, as one process reads it.

    Args:
        folder: of the cache.
        for_reading: True to neither create nor write the file.

    Raises:
        NotPrivate: folder or file belong to another user, or others can access them.
        OSError: the file cannot be read.

    Example:
        >>> withdrawals = Withdrawals("/nvme/sophon/sophon-cache-1-uid1000")
        >>> withdrawals.add()
        >>> withdrawals.count
        1
    """

    _descriptor = -1
    """Value for `__del__` if `__init__` has raised."""

    def __init__(self, folder: str, *, for_reading: bool = False) -> None:
        within = open_private_folder(folder)
        try:
            self._descriptor = _opened(within, for_reading)
        finally:
            os.close(within)

    @property
    def count(self) -> int:
        """Number of withdrawals so far."""
        return 0 if self._descriptor < 0 else os.fstat(self._descriptor).st_size

    def add(self) -> None:
        """Add a withdrawal; it is on the disk when this returns.

        Raises:
            OSError: it cannot be written.
        """
        os.write(self._descriptor, b"\0")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file. It is also closed when this object is garbage-collected."""
        opened, self._descriptor = self._descriptor, -1
        if opened >= 0:
            os.close(opened)

    __del__ = close


def _opened(folder: int, for_reading: bool) -> int:
    """Open the file, and return its descriptor; -1 if it does not exist and cannot be created, so that there was no
    withdrawal."""
    if not for_reading:
        try:
            return open_private_file(folder, NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        except NotPrivate:
            raise
        except OSError:  # a disk that is full, or has become read-only
            pass
    try:
        return open_private_file(folder, NAME, os.O_RDONLY)
    except FileNotFoundError:
        return -1
