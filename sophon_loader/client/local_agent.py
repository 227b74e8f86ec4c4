"""The process of an agent on this host that lives as long as its loader."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path

import sophon_loader
from sophon_loader.client.address import Address
from sophon_loader.client.options import LocalAgent
from sophon_loader.errors import AgentUnreachable
from sophon_loader.host.private_folder import sweep
from sophon_loader.wire.announcement import Awaited

EXPORT = "local"
_PROGRAM = Path(sophon_loader.__file__).parents[1] / "storage_agent" / "pinned.py"
"""The agent of the package that this loader is of; `-m storage_agent` would take one in the working directory."""
_started: weakref.WeakSet[LocalAgentProcess] = weakref.WeakSet()
"""By this process or one that it was forked from."""


@cache
def _watch_forks() -> None:
    """Have forked processes let go of agents' standard inputs: an agent lives as long as one of them is held open."""
    os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_to_parent() -> None:
    for one in _started:
        one.leave_to_parent()


class LocalAgentProcess:
    """A `sophon-agent serve` child process on a Unix socket no other user can reach; nothing waits for it to start.

    It ends when `close` is called, when this object is collected, or when this process dies: it watches the
    pipe that is its standard input. What is forked from this process neither ends it nor keeps it alive.

    Args:
        root: the folder that it serves.
        settings: of the agent.

    Example:
        >>> process = LocalAgentProcess("/data/train", LocalAgent(workers=1))
        >>> while (address := process.address(wait_s=0.1)) is None:
        ...     print("it still starts")
    """

    def __init__(self, root: str, settings: LocalAgent) -> None:
        self._process = subprocess.Popen(
            _command(root, settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.close: Callable[[], object] = weakref.finalize(self, _end, self._process, os.getpid())
        self._awaited = Awaited(self._process)
        self._address: Address | None = None
        _watch_forks()
        _started.add(self)

    def address(self, wait_s: float) -> Address | None:
        """Where it listens; None if it has not said so within `wait_s`.

        Raises:
            AgentUnreachable: it has ended, or has not said so in all the time that it may take to start.
        """
        if self._address is None:
            said = self._awaited.heard(wait_s)
            self._address = None if said is None else Address(said.endpoint, EXPORT)
        elif (status := self._process.poll()) is not None:  # a worker could not import its ops, say
            raise AgentUnreachable(
                f"an agent must start, got one that ended with status {status}; its own words are on standard error"
            )
        return self._address

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid

    def leave_to_parent(self) -> None:
        """In a process that was forked from the one which started it: let go of its pipes."""
        _close_pipes(self._process)


def _command(root: str, settings: LocalAgent) -> list[str]:
    command = [sys.executable, str(_PROGRAM), "serve", "--end-with-stdin", "--log-level", "warning"]
    command += ["--export", f"{EXPORT}={os.path.abspath(root)}", "--bind", "ipc://*", "--links-out"]
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
    # Its standard input is closed last: that is a SIGTERM, too, and a second one ends it before it has tidied up.
    process.terminate()
    try:
        process.wait(15.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    sweep()  # the folder of its socket, if it was killed
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
