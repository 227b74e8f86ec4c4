"""The process that workers are forked from: multiprocessing's forkserver, of which a process may have several here."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver, popen_forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from sophon_loader.host.private import open_private_folder

_NOWHERE = "/proc/self/no folder"
"""Where no file can be made."""
_FORKSERVERS = 3
"""So many are started for one worker, should each be killed before it has started that."""
_PINNED = Path(__file__).parents[1] / "pinned.py"
_placing = threading.Lock()
"""Held while a forkserver's socket is made: where, multiprocessing reads from a setting of the whole process."""


class _Preloaded(list[str]):
    """What the forkserver imports first, from the package that this file lies in.

    Its module path begins with the working directory, which may hold another copy of it, and before Python 3.13 it is
    not told this process's path. The command that it is started with holds this list's `repr`.
    """

    def __repr__(self) -> str:
        return f"__import__('runpy').run_path({str(_PINNED)!r}) and {super().__repr__()}"


class _Child(ForkServerProcess):
    """A process that is forked from a `WarmParent` of its own."""

    warm: WarmParent

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        return process_obj.warm.popen(process_obj)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "warm"}


class WarmParent(forkserver.ForkServer):
    """Imports modules once and forks processes, which share that memory. It starts with the first of them.

    Multiprocessing starts its one forkserver by itself, but with its socket in a folder that stays behind when the
    agent is killed. Here the folder is there for no longer than the socket is made; the socket is reached by an open
    file, which needs no name.

    Args:
        modules: names of those that are imported first.

    Example:
        >>> parent = WarmParent(["storage_agent.workers.body"])
        >>> process = parent.process(target=print, args=("a worker",))
        >>> parent.start(process)
        >>> parent.end()
    """

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self.set_forkserver_preload(_Preloaded(modules))
        self._held: int | None = None
        """The file of the socket."""
        # Multiprocessing's own way to start a process, with this forkserver in place of its one.
        ours = SimpleNamespace(connect_to_new_process=self.connect_to_new_process, read_signed=forkserver.read_signed)
        launch: Any = popen_forkserver.Popen._launch  # type: ignore[attr-defined]
        names = {**vars(popen_forkserver), "forkserver": ours}
        self.popen: Any = type("Popen", (popen_forkserver.Popen,), {"_launch": FunctionType(launch.__code__, names)})

    def process(self, **how: Any) -> ForkServerProcess:
        """Return a process that has yet to be started.

        Args:
            how: see `multiprocessing.Process`.
        """
        process = _Child(**how)
        process.warm = self
        return process

    def start(self, process: ForkServerProcess) -> None:
        """Start a process, and before it the forkserver unless that runs.

        Args:
            process: of `process`.

        Raises:
            OSError, EOFError: no process or descriptor is left, or the forkserver has ended.
        """
        for _ in range(_FORKSERVERS):
            try:
                process.start()
                return
            except ConnectionRefusedError:  # it has been killed, and does not count as ended yet
                pid = self.end()
                assert pid is not None, "who refuses runs"
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        process.start()

    def end(self) -> int | None:
        """Kill the forkserver: while it imports torch, and while it ends with torch imported, it stays for seconds.

        Returns:
            Its process id; None if there is none.
        """
        pid: int | None = getattr(self, "_forkserver_pid", None)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def ensure_running(self) -> None:
        """Start the forkserver, unless it runs."""
        settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
        with _placing:
            settings["tempdir"] = _NOWHERE
            try:
                super().ensure_running()
            except FileNotFoundError:  # it does not run, and found no place for its socket
                self._start_in_a_folder(settings)
            finally:
                settings.pop("tempdir")

    def _start_in_a_folder(self, settings: dict[str, Any]) -> None:
        folder = tempfile.mkdtemp(prefix="sophon-agent-")
        place = open_private_folder(folder)
        try:
            short = f"/proc/self/fd/{place}"  # a socket's path has at most 107 bytes, a folder's more
            settings["tempdir"] = short
            super().ensure_running()
            self._hold_socket()
        finally:
            os.close(place)
            shutil.rmtree(folder)

    def _hold_socket(self) -> None:
        """Reach the forkserver without the name of its socket; the one before has ended."""
        this: Any = self
        before, self._held = self._held, os.open(this._forkserver_address, os.O_PATH)
        this._forkserver_address = f"/proc/self/fd/{self._held}"
        if before is not None:
            os.close(before)
