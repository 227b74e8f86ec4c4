"""Agents without the seconds that each takes to import torch: forked from a process that has imported it.

Such an agent does what `python -m storage_agent` does, in processes of the same descent; but the interpreters of the
agent, of its forkserver and of multiprocessing's resource tracker are copies and not new ones. Tests of the start
itself, of what is imported, and of limits that a process is started with start the command.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing.util
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).parents[2]
_MOST = 1 << 18
"""Bytes of a request: the environment, for the most part."""


class Started:
    """An agent that has been forked: as much of `subprocess.Popen` as tests use.

    Args:
        pid: of the agent, which is no child of this process.
        stdin, stdout: this process's ends of its pipes.
        status: from which its exit status can be read when it has ended.
    """

    def __init__(self, pid: int, stdin: int, stdout: int, status: int) -> None:
        self.pid = pid
        self.stdin = os.fdopen(stdin, "wb")
        self.stdout = os.fdopen(stdout, "rb")
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit status, as `subprocess` counts it, if it has ended."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not ended in so many seconds.
        """
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("storage_agent", timeout or 0.0)
        return status

    def _ended(self, wait_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], wait_s)[0]:
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Warm:
    """A process that has imported what agents import; it ends with this one.

    Args:
        modules: a folder whose modules it, and all agents, find before others.

    Example:
        >>> warm = Warm()
        >>> process = warm.start(["serve", "--export", "pictures=/data/pictures", "--bind", "tcp://127.0.0.1:0"])
        >>> announced(process)
    """

    def __init__(self, modules: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = [str(one) for one in (modules, os.environ.get("PYTHONPATH")) if one]
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
            self._process = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])

    def start(self, arguments: Sequence[str], errors: int = 2) -> Started:
        """Fork an agent, with this process's environment.

        Args:
            arguments: of `sophon-agent`.
            errors: the descriptor of its standard error.
        """
        stdin, to_stdin = os.pipe()
        from_stdout, stdout = os.pipe()
        from_status, status = os.pipe()
        request = json.dumps({"arguments": [*arguments], "environment": dict(os.environ)}).encode()
        with self._lock:
            socket.send_fds(self._end, [request], [stdin, stdout, errors, status])
            pid = int(self._end.recv(16))
        for one in (stdin, stdout, status):
            os.close(one)
        return Started(pid, to_stdin, from_stdout, from_status)

    def close(self) -> None:
        """End it, and the agents that have not ended."""
        self._end.close()
        self._process.wait()


@functools.cache
def shared() -> Warm:
    """The one of this process's tests."""
    return Warm()


# --- in the warm process ----------------------------------------------------------------------------------------------


def main(end: socket.socket) -> None:
    """Fork agents, and tell when they have ended, until the other end is closed or its process is gone."""
    import storage_agent.broker
    import storage_agent.workers.body  # noqa: F401  what takes long

    statuses: dict[int, tuple[int, int]] = {}  # pidfd -> the agent, and where its exit status goes
    with selectors.DefaultSelector() as selector:
        parent = os.pidfd_open(os.getppid())
        for one in (end, parent):
            selector.register(one, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd in statuses:
                    selector.unregister(key.fd)
                    _tell(key.fd, *statuses.pop(key.fd))
                    continue
                request, fds, *_ = socket.recv_fds(end, _MOST, 4) if key.fd == end.fileno() else (b"", [])
                if not request:
                    for pid, _ in statuses.values():
                        os.kill(pid, signal.SIGKILL)
                    return
                pid = _fork()
                if pid == 0:
                    _become_agent(fds, **json.loads(request))
                for fd in fds[:3]:
                    os.close(fd)
                end.send(str(pid).encode())
                pidfd = os.pidfd_open(pid)
                statuses[pidfd] = pid, fds[3]
                selector.register(pidfd, selectors.EVENT_READ)


def _tell(pidfd: int, pid: int, status: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os.close(status)
    os.close(pidfd)


def _become_agent(fds: Sequence[int], arguments: Sequence[str], environment: dict[str, str]) -> NoReturn:
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.argv[1:] = arguments
    multiprocessing.util.spawnv_passfds = _forked  # type: ignore[assignment]
    _end_with(lambda: runpy.run_module("storage_agent", run_name="__main__", alter_sys=True))


def _forked(path: str, arguments: Sequence[str], passfds: Sequence[int]) -> int:
    """In place of multiprocessing's: what a new Python would be told to run is run by a copy of this one."""
    pid = _fork()
    if pid == 0:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        kept = sorted(passfds)
        for low, high in zip([2, *kept], [*kept, os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        at = arguments.index("-c") + 1
        sys.argv = ["-c", *arguments[at + 1 :]]  # Python 3.14 hands the forkserver those of its parent
        _end_with(lambda: exec(arguments[at], {}))
    return pid


def _fork() -> int:
    """Without what Python 3.12 and later say where there are threads, which would be in the agents' logs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _end_with(run: Any) -> NoReturn:
    """Run it to the end of this process, as Python would."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as ours:
        main(ours)
