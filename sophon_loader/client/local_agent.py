"""`agent="local"`: an agent on this host that lives as long as its loader."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
import weakref
from collections.abc import Callable

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.errors import AgentUnreachable

EXPORT = "local"
_START_S = 30.0


class LocalAgent:
    """A `sophon-agent serve` child process on a free port of the loopback interface.

    It ends when `close` is called, when this object is collected, or when this process dies: it watches the
    pipe that is its standard input.
    """

    def __init__(self, root: str, options: OffloadOptions) -> None:
        self._process = subprocess.Popen(
            _command(root, options), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.close: Callable[[], object] = weakref.finalize(self, _end, self._process, os.getpid())
        try:
            self.address = Address(_endpoint(self._process), EXPORT)
        except AgentUnreachable:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The agent's process id."""
        return self._process.pid


def _command(root: str, options: OffloadOptions) -> list[str]:
    command = [sys.executable, "-m", "storage_agent", "serve", "--end-with-stdin"]
    command += ["--export", f"{EXPORT}={os.path.abspath(root)}", "--bind", "tcp://127.0.0.1:0"]
    if options.agent_workers is not None:
        command += ["--workers", str(options.agent_workers)]
    if options.agent_limit_mbit is not None:
        command += ["--limit-mbit", str(options.agent_limit_mbit)]
    for module in options.agent_ops:
        command += ["--ops", module]
    return command


def _endpoint(process: subprocess.Popen[bytes]) -> str:
    """Where the agent says that it listens."""
    assert process.stdout is not None
    end = time.monotonic() + _START_S
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while b"\n" not in said:
            if not selector.select(max(0.0, end - time.monotonic())):
                raise AgentUnreachable(f"the local agent must start within {_START_S:g} s, it said {said!r}")
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                raise AgentUnreachable(f"the local agent must start, but it ended with status {process.wait()}")
            said += chunk
    return said.decode().split(" at ")[-1].split()[0]


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
