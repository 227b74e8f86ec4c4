"""How often a cache has lost trust in what agents have sent: each time that one was found to have other files.

The count is the size of a file in the cache's folder, to which each withdrawal adds a byte. So processes need no lock,
and one that is killed has added its byte or has not. Copies that agents have sent bear the count of their time
(`Segment`), and are found only while it is the same.
"""

from __future__ import annotations

import os

from sophon_loader.host.private import NotPrivate, open_private_file, open_private_folder

NAME = "withdrawals"


class Withdrawals:
    """The count, as one process sees it.

    Args:
        folder: of the cache.
        for_reading: the file is neither made nor written to.

    Raises:
        NotPrivate: folder or file belong to another user, or others may reach them.
        OSError: the count cannot be read.

    Example:
        >>> withdrawals = Withdrawals("/nvme/sophon/sophon-cache-1-uid1000")
        >>> withdrawals.add()
        >>> withdrawals.count
        1
    """

    _descriptor = -1
    """What `__del__` finds where `__init__` has raised."""

    def __init__(self, folder: str, *, for_reading: bool = False) -> None:
        within = open_private_folder(folder)
        try:
            self._descriptor = _opened(within, for_reading)
        finally:
            os.close(within)

    @property
    def count(self) -> int:
        """How many there were until now."""
        return 0 if self._descriptor < 0 else os.fstat(self._descriptor).st_size

    def add(self) -> None:
        """One more, which lasts when this returns.

        Raises:
            OSError: it cannot be written.
        """
        os.write(self._descriptor, b"\0")
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close its file; it is closed, too, when nobody refers to the count."""
        opened, self._descriptor = self._descriptor, -1
        if opened >= 0:
            os.close(opened)

    __del__ = close


def _opened(folder: int, for_reading: bool) -> int:
    """A descriptor; -1 where there is no file, and none can be made: then there was no withdrawal."""
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
