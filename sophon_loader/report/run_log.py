"""Log of a run: a file with one JSON object per line. Logging never delays a training, and never ends one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sophon_loader.errors import warn_user
from sophon_loader.host.regular import check_regular
from sophon_loader.logs import log_line

VERSION = 1
"""Version of the lines' format; raised if an older reader would misunderstand them."""
MOST_NAMES = 64
"""Maximum number of file names that are tried while other processes write to files of these names."""
log = logging.getLogger(__name__)
_loaders: Counter[str] = Counter()


def file_of(pattern: str, rank: int, loader: int) -> str:
    """Return the file name of a log.

    Args:
        pattern: given by the user. If it lacks `{rank}` or `{loader}`, and that number is not 0, it is added.
        rank: of this process.
        loader: number of the loader within this process.

    Example:
        >>> file_of("logs/run-{rank}.jsonl", 3, 1)
        'logs/run-3-loader1.jsonl'
    """
    added = ""
    if rank and "{rank}" not in pattern:
        added += f"-rank{rank}"
    if loader and "{loader}" not in pattern:
        added += f"-loader{loader}"
    return _with(pattern.replace("{rank}", str(rank)).replace("{loader}", str(loader)), added)


class RunLog:
    """Log of one loader. Lines are appended, so the logs of earlier runs stay.

    A second process that would write to the same file, such as a job that was started twice, gets a file with another
    number. If writing fails, the log stops with one warning.

    Args:
        pattern: of the file's name.

    Example:
        >>> log = RunLog("run-{rank}.jsonl")
        >>> log.write("begin", {"epoch": 0}, rank=0)
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._loader = _loaders[pattern]
        _loaders[pattern] += 1
        self._pid = os.getpid()
        self._path = ""
        self._stopped = False
        self._descriptor: int | None = None
        self._closing: weakref.finalize[..., Any] | None = None

    def write(self, kind: str, facts: Mapping[str, Any], rank: int) -> None:
        """Append a line.

        Args:
            kind: "begin", "second" or "report".
            facts: its content, as plain data.
            rank: of this process; a file keeps its first name.

        Warns:
            OffloadWarning: once, if the line cannot be written.
        """
        if self._stopped:
            return
        head = {"v": VERSION, "kind": kind, "time": round(time.time(), 3)}
        line = json.dumps({**head, **facts}, default=float, separators=(",", ":")) + "\n"
        try:
            _append(self._opened(rank), line.encode())
        except OSError as error:
            self._stopped = True
            self.close()
            where = self._path or self._pattern
            warn_user(f"The log {where} stops here, and the training goes on: {error.strerror or error}.")

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._closing is not None:
            self._closing()
        self._descriptor = self._closing = None

    def _opened(self, rank: int) -> int:
        if self._pid != os.getpid():  # forked: the file is the parent's
            self.close()
            self._pid, self._path = os.getpid(), ""
        if self._descriptor is None:
            wanted = os.path.abspath(file_of(self._pattern, rank, self._loader))
            os.makedirs(os.path.dirname(wanted), exist_ok=True)
            self._descriptor, self._path = _locked(wanted)
            self._closing = weakref.finalize(self, os.close, self._descriptor)
            log.info(log_line("run log", file=self._path))
        return self._descriptor


def _with(path: str, added: str) -> str:
    stem, suffix = os.path.splitext(path)
    return f"{stem}{added}{suffix}"


def _locked(wanted: str) -> tuple[int, str]:
    """Open a file for appending that no other process appends to; returns its descriptor and name."""
    for number in range(1, MOST_NAMES + 1):
        path = wanted if number == 1 else _with(wanted, f"-{number}")
        # O_NONBLOCK: opening a pipe must not hang.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o666)
        try:
            check_regular(os.fstat(descriptor), path)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):  # of file systems without locks
                os.close(descriptor)
                raise
        with contextlib.suppress(OSError):
            _end_line(descriptor, path)
        return descriptor, path
    raise FileExistsError(errno.EEXIST, f"{MOST_NAMES} processes write to files of this name", wanted)


def _end_line(descriptor: int, path: str) -> None:
    """End the last line of a run that was killed while writing it, so that the next one is a line of its own."""
    size = os.fstat(descriptor).st_size
    if not size:
        return
    with open(path, "rb") as whole:
        whole.seek(size - 1)
        if whole.read(1) != b"\n":
            os.write(descriptor, b"\n")


def _append(descriptor: int, line: bytes) -> None:
    """Write all of a line.

    Raises:
        OSError: there is no room, or the file is gone, so that no reader could find the line.
    """
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError(errno.ENOENT, "the file is gone")
    while line:
        line = line[os.write(descriptor, line) :]
