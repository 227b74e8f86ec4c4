"""Folders and files that no other user can write to. Owner and mode are checked on the opened descriptor.

A path that was checked earlier may lead elsewhere by now: users who can write to the folder above may have put one of
their own in its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

ALL_ACCESS, WRITING = 0o077, 0o022
"""Mode bits that other users must not have: any access, or writing."""
_NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR, errno.EACCES)
"""Errors for a link, a file, or a folder that its owner hides from this user."""


class NotPrivate(PermissionError):
    """The opened file or folder belongs to another user, or others can access it."""


def open_private_folder(
    path: str | Path, *, kept_from_others: int = ALL_ACCESS, follow: bool = False, owners: Collection[int] = ()
) -> int:
    """Open a folder of this user's, and return a descriptor for access to its files.

    Args:
        path: of the folder.
        kept_from_others: bits that its mode must not have.
        follow: True if the path may be a symbolic link.
        owners: users who may own it, in addition to this one.

    Raises:
        NotPrivate: it is a link or not a folder, belongs to another user, or others can access it.
        OSError: it does not exist.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno not in _NOT_A_FOLDER:
            raise
        raise NotPrivate(f"{path} must be a folder of this user's: {os.strerror(error.errno)}") from error
    return _checked(descriptor, path, kept_from_others, (os.geteuid(), *owners))


def open_private_file(folder: int, name: str, flags: int) -> int:
    """Open a file in a private folder, which this user or root has written, and return its descriptor.

    Args:
        folder: descriptor of the folder.
        name: of the file; links are not followed.
        flags: as for `os.open`.

    Raises:
        NotPrivate: it belongs to another user, or others can write to it.
        OSError: it cannot be opened.
    """
    descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    return _checked(descriptor, name, WRITING, (os.geteuid(), 0))


def check_private(
    status: os.stat_result, path: str | Path, kept_from_others: int, owners: Collection[int] | None = None
) -> None:
    """Check that an opened file or folder belongs to this user or root, and that others lack access.

    Args:
        status: of the opened file or folder.
        path: for the error message.
        kept_from_others: bits that its mode must not have.
        owners: users who may own it; None for this user and root.

    Raises:
        NotPrivate: it belongs to another user, or others have access.
    """
    if status.st_uid not in ((os.geteuid(), 0) if owners is None else owners):
        raise NotPrivate(f"{path} must belong to this user (uid {os.geteuid()}), got uid {status.st_uid}")
    if status.st_mode & kept_from_others:
        raise NotPrivate(f"{path} must be kept from other users, got mode {stat.S_IMODE(status.st_mode):o}")


def _checked(descriptor: int, path: str | Path, kept_from_others: int, owners: Collection[int]) -> int:
    try:
        check_private(os.fstat(descriptor), path, kept_from_others, owners)
    except NotPrivate:
        os.close(descriptor)
        raise
    return descriptor
