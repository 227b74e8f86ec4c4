"""A folder for a Unix socket that only this user can reach. Its path is short, and it is removed soon after its process
ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sophon_loader.errors import AgentError
from sophon_loader.host.private import open_private_folder

MAX_SOCKET_NBYTES = 107
"""Longest path of a Unix socket, bytes."""
_PREFIX = "sophon-agent-"
_NAME = "socket"
_RANDOM_NBYTES = 8
"""Length of the random text that `mkdtemp` appends to a prefix."""


class PrivateFolder:
    """A folder that this process locks while it lives. `sweep` removes folders whose process has ended without
    `remove`.

    Raises:
        AgentError: no place for such a folder was found.

    Example:
        >>> folder = PrivateFolder()
        >>> folder.socket
        '/run/user/1000/sophon-agent-x2k1q8zz/socket'
        >>> folder.remove()
    """

    def __init__(self) -> None:
        sweep()
        self.path, self._lock = _made()
        self.socket = str(self.path / _NAME)

    def remove(self) -> None:
        """Remove the folder and the socket. Safe to call twice."""
        if self._lock >= 0:
            _remove(self.path, self._lock)
            os.close(self._lock)
            self._lock = -1


def sweep() -> None:
    """Remove this user's folders whose process has ended."""
    for base in _bases():
        for path in base.glob(_PREFIX + _RANDOM_NBYTES * "?"):
            with contextlib.suppress(OSError):
                lock = open_private_folder(path)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(path, lock)
                finally:
                    os.close(lock)


def _remove(path: Path, folder: int) -> None:
    """Remove a folder if it holds nothing but the socket: an unrelated folder with a similar name may hold anything.

    Args:
        path: of the folder; another folder may be there by now.
        folder: its descriptor.
    """
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_NAME, dir_fd=folder)
        path.rmdir()


def _made() -> tuple[Path, int]:
    """Make a folder; returns its path and the descriptor that locks it."""
    for base in _bases():
        with contextlib.suppress(OSError):
            for _ in range(9):  # another process may sweep it before it is locked
                path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
                lock = open_private_folder(path)
                with contextlib.suppress(OSError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.path.samestat(os.stat(path), os.fstat(lock)):
                        return path, lock
                os.close(lock)
    raise AgentError(
        "a local agent must have a folder for its Unix socket, got none in "
        f"{', '.join(map(str, _bases())) or 'any place with a short path'}; set TMPDIR to a folder with a short path"
    )


def _bases() -> Iterator[Path]:
    """Yield possible parents of such folders: the user's runtime folder, the folder for temporary files, /tmp."""
    given = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for base in dict.fromkeys(given):
        longest = len(os.fsencode(base)) + len(f"/{_PREFIX}/{_NAME}") + _RANDOM_NBYTES
        if os.path.isabs(base) and longest <= MAX_SOCKET_NBYTES:
            yield Path(base)
