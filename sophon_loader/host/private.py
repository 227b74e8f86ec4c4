"""Folders and files into which nobody else writes. Owner and mode are those of what was opened.

A path that was looked at earlier may lead elsewhere by now: whoever may write to the folder above can put one of their
own in its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection
from pathlib import Path

ALL_ACCESS, WRITING = 0o077, 0o022
"""Bits of a mode that others must not have: none may be set where they must not even read."""
_NOT_A_FOLDER = (errno.ELOOP, errno.ENOTDIR, errno.EACCES)
"""A link, a file, or a folder that its owner keeps from this user."""


class NotPrivate(PermissionError):
    """What was opened belongs to another user, or others may reach it."""


def open_private_folder(
    path: str | Path, *, kept_from_others: int = ALL_ACCESS, follow: bool = False, owners: Collection[int] = ()
) -> int:
    """A descriptor of a folder, by which what is in it can be reached.

    Args:
        path: of the folder.
        kept_from_others: bits that its mode must not have.
        follow: whether the path may be a symbolic link.
        owners: users that may own it besides this one.

    Raises:
        NotPrivate: it is a link or no folder, belongs to another user, or others may reach it.
        OSError: there is none.
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
    """A descriptor of a file in a private folder, which this user, or root, has written.

    Args:
        folder: its descriptor.
        name: of the file; no link is followed.
        flags: as of `os.open`.

    Raises:
        NotPrivate: it belongs to another user, or others may write to it.
        OSError: it cannot be opened.
    """
    descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    return _checked(descriptor, name, WRITING, (os.geteuid(), 0))


def check_private(
    status: os.stat_result, path: str | Path, kept_from_others: int, owners: Collection[int] | None = None
) -> None:
    """See that something belongs to this user, or to root, and is kept from others.

    Args:
        status: of what was opened.
        path: for the error.
        kept_from_others: bits that its mode must not have.
        owners: users that may own it; None for this one and root.

    Raises:
        NotPrivate: it does not.
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
