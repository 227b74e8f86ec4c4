"""A small file that a process rewrites while it lives, as information for other processes, and removes at its end."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from sophon_loader.host.regular import read_below

_SWEPT_S = 86_400.0
"""Age, relative to a newly written file, above which a file counts as left behind by a killed process. If that process
is alive and only its disk hung, its next write restores the file."""
_MAX_SWEPT = 10_000
"""Maximum number of names that one sweep looks at."""


class KeptFile:
    """Rewrites one file regularly in its own thread, so that a slow or hanging disk delays nothing else.

    It replaces any file of the same name. The file is written under a name that begins with a dot, which readers
    ignore. Files in the folder that killed processes have left behind are removed once. A forked copy of the process
    does nothing.

    Args:
        path: of the file.
        text: ASCII.
        prefix: common beginning of the names of all such files.
        every_s: seconds between two writes.
        told: called by the thread after each write with "" or the reason for its failure, and the seconds that it took.
        thread: name of the thread.

    Attributes:
        text: the newest text; the next write uses it.
    """

    def __init__(
        self, path: Path, text: str, *, prefix: str, every_s: float, told: Callable[[str, float], None], thread: str
    ) -> None:
        self.path = path
        self.text = text
        self._prefix = prefix
        self._every_s = every_s
        self._told = told
        self._written = ""
        self._process = os.getpid()
        self._leaving = threading.Event()
        self._since_s: float | None = None
        """Start of the write in progress, s; None between writes."""
        self._thread = threading.Thread(target=self._keep, name=thread, daemon=True)

    @property
    def is_own(self) -> bool:
        """True if this process writes the file; False in a process that was forked from it."""
        return self._process == os.getpid()

    @property
    def writing_s(self) -> float:
        """Seconds since the write in progress began; 0 between writes."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def start(self) -> None:
        """Start the thread that writes the file."""
        self._thread.start()

    def leave(self) -> None:
        """Have the file removed soon, without waiting for it."""
        if self.is_own:  # else the thread may have held the lock of this when the process was forked
            self._leaving.set()

    def close(self, wait_s: float) -> None:
        """Remove the file, or give up if the disk takes too long. Safe to call twice, and without `start`.

        Args:
            wait_s: maximum wait in seconds.
        """
        self.leave()
        if self.is_own and self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _keep(self) -> None:
        swept = False
        while not self._leaving.is_set():
            begun_s = self._since_s = time.monotonic()
            reason = ""
            try:
                self._write()
                if not swept:
                    self._sweep()
                    swept = True
            except OSError as error:
                reason = error.strerror or str(error)
            self._since_s = None
            self._told(reason, time.monotonic() - begun_s)
            self._leaving.wait(self._every_s)
        self._remove()

    def _write(self) -> None:
        text = self.text
        temporary = new_file(self.path.parent, text, self._prefix)
        self._written = text
        try:
            os.replace(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise

    def _sweep(self) -> None:
        """Remove files of killed processes. Ages are measured by the file server's clock, which dates all files."""
        newest_s = os.stat(self.path, follow_symlinks=False).st_mtime
        with os.scandir(self.path.parent) as files:
            for _, file in zip(range(_MAX_SWEPT), files, strict=False):
                if file.name.removeprefix(".").startswith(self._prefix):
                    with contextlib.suppress(OSError):  # another was faster, or it is another user's
                        if newest_s - file.stat(follow_symlinks=False).st_mtime > _SWEPT_S:
                            os.unlink(file.path)

    def _remove(self) -> None:
        written = self._written.encode("ascii")
        with contextlib.suppress(OSError):
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                found, _ = read_below(folder, self.path.name, len(written))
                if found == written:  # else another has taken its place
                    os.unlink(self.path.name, dir_fd=folder)
            finally:
                os.close(folder)


def new_file(folder: Path, text: str, prefix: str) -> str:
    """Write a new file that readers ignore, and return its path. Every user may read it, so it must hold no secret.

    Args:
        folder: for the file.
        text: ASCII.
        prefix: beginning of its name, after a dot.

    Raises:
        OSError: it cannot be written; no file is left.
    """
    descriptor, path = tempfile.mkstemp(prefix=f".{prefix}", dir=folder)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o644)
            file.write(text)
    except OSError:
        os.unlink(path)
        raise
    return path
