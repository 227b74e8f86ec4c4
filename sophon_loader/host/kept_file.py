"""A small file by which a process tells others something while it lives, and which is removed at its end."""

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
"""A file so much older than one just written was left by a process that was killed. Should that live, on a disk that
hung, the next writing brings it back."""
_MAX_SWEPT = 10_000
"""Names that are looked at."""


class KeptFile:
    """Keeps one file, in a thread of its own: a disk that is slow, or hangs, holds up nobody else.

    It takes the place of one with the same name. Readers look at no name that begins with a dot, under which it is
    written. What processes that were killed have left in the folder is removed, once. In a forked copy of the process
    nothing is done.

    Args:
        path: of the file.
        text: ASCII.
        prefix: of the names of all such files.
        every_s: how often it is written anew.
        told: called by the thread after each writing with "", or the reason why it failed, and the seconds it took.
        thread: its name.

    Attributes:
        text: the newest, which the next writing takes.
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
        """When the writing that goes on has begun."""
        self._thread = threading.Thread(target=self._keep, name=thread, daemon=True)

    @property
    def is_own(self) -> bool:
        """Whether this process keeps it, and not one that it was forked from."""
        return self._process == os.getpid()

    @property
    def writing_s(self) -> float:
        """Seconds for which the writing that goes on has gone on; 0 while there is none."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def start(self) -> None:
        """Write it from now on."""
        self._thread.start()

    def leave(self) -> None:
        """Have it removed soon, without waiting for that."""
        if self.is_own:  # else the thread may have held the lock of this when the process was forked
            self._leaving.set()

    def close(self, wait_s: float) -> None:
        """Remove it, or give that up when the disk takes too long. Safe to call twice, and without `start`.

        Args:
            wait_s: for how long to wait at most.
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
        """Remove what was left by processes that were killed, by the clock of whoever keeps the files, which dates them
        all."""
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
    """The path of a new file with a text, which readers do not look at; everybody may read it, so it holds no secret.

    Args:
        folder: in which it lies.
        text: ASCII.
        prefix: of its name, behind a dot.

    Raises:
        OSError: it cannot be written; then there is none.
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
