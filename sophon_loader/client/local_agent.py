"""The process of an agent on this host that lives as long as its loader."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable

from sophon_loader.client.address import Address
from sophon_loader.client.options import LocalAgent
from sophon_loader.errors import AgentUnreachable
from sophon_loader.wire.announcement import announced

EXPORT = "local"


class LocalAgentProcess:
    """A `sophon-agent serve` child process on a free port of the loopback interface.

    It ends when `close` is called, when this object is collected, or when this process dies: it watches the
    pipe that is its standard input.
    """

    def __init__(self, root: str, settings: LocalAgent) -> None:
        self._process = subprocess.Popen(
            _command(root, settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.close: Callable[[], object] = weakref.finalize(self, _end, self._process, os.getpid())
        try:
            self.address = Address(announced(self._process).endpoint, EXPORT)
        except AgentUnreachable:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid


def _command(root: str, settings: LocalAgent) -> list[str]:
    command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin", "--log-level", "warning"]
    command += ["--export", f"{EXPORT}={os.path.abspath(root)}", "--bind", "tcp://127.0.0.1:0"]
    if settings.workers is not None:
        command += ["--workers", str(settings.workers)]
    if settings.limit_mbit is not None:
        command += ["--limit-mbit", str(settings.limit_mbit)]
    for module in settings.ops:
        command += ["--ops", module]
    return command


def _end(process: subprocess.Popen[bytes], owner_pid: int) -> None:
    """Stop it: SIGTERM (it finishes what is in flight), SIGKILL after 15 s."""
    if os.getpid() != owner_pid:  # a forked copy of the loader must not end its parent's agent
        return
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.terminate()
    try:
        process.wait(15.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
