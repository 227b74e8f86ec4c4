"""Nobody else on this host reaches a loader's own agent, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sophon_loader.client.connection import Connection
from sophon_loader.client.local_agent import LocalAgentProcess
from sophon_loader.host.private_folder import sweep
from storage_agent.command.status import ask_status
from tests.support.agents import ROOT, WAIT_S, until
from tests.support.loaders import LOCAL

HOLD = """
import sys
from sophon_loader.client.local_agent import LocalAgentProcess
from sophon_loader.client.options import LocalAgent
process = LocalAgentProcess(sys.argv[1], LocalAgent(workers=1))
while (address := process.address(1.0)) is None:
    pass
print(address.endpoint, process.pid, flush=True)
sys.stdin.read()
"""
CONNECT = """
import os, socket, sys
one = socket.socket(socket.AF_UNIX)
if len(sys.argv) > 2:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
one.connect(sys.argv[1])
"""
NOBODY = "65534"


@pytest.fixture
def process(root: Path) -> Iterator[LocalAgentProcess]:
    process = LocalAgentProcess(str(root), LOCAL)
    yield process
    process.close()


def _socket_of(process: LocalAgentProcess) -> Path:
    return Path(until(lambda: process.address(0.1), "the agent listens").endpoint.removeprefix("ipc://"))


def _connect(path: Path, *user: str) -> str:
    """What comes of connecting as another user; "" when it works."""
    done = subprocess.run([sys.executable, "-c", CONNECT, path, *user], capture_output=True, text=True, timeout=60)
    return done.stderr


def test_it_listens_where_its_user_alone_can_reach_it(process: LocalAgentProcess) -> None:
    path = _socket_of(process)
    about = path.parent.stat()
    assert path.is_socket() and (about.st_mode & 0o777, about.st_uid) == (0o700, os.getuid())
    agent = psutil.Process(process.pid)
    connections = getattr(agent, "net_connections", None) or agent.connections  # before psutil 6
    assert not connections("inet"), "no port that another user could connect to"
    address = process.address(0.0)
    assert address is not None
    connection = Connection(address, window=1)
    assert connection.greet(WAIT_S).exports == ["local"]
    connection.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(process: LocalAgentProcess) -> None:
    path = _socket_of(process)
    assert _connect(path) == ""
    assert "PermissionError" in _connect(path, NOBODY)


def test_its_folder_goes_with_it(process: LocalAgentProcess) -> None:
    path = _socket_of(process)
    process.close()
    assert not path.parent.exists()


def test_its_folder_goes_when_it_is_killed(process: LocalAgentProcess) -> None:
    """At once, or with the next look: a process that the agent was just starting has its descriptors for a moment."""
    path = _socket_of(process)
    os.kill(process.pid, signal.SIGKILL)
    process.close()

    def gone() -> bool:
        sweep()
        return not path.parent.exists()

    until(gone, "the folder is removed")


def test_its_folder_goes_when_its_loader_is_killed(root: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(root)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as loader:
        endpoint, pid = loader.stdout.readline().split()
        path = Path(endpoint.removeprefix("ipc://"))
        assert path.is_socket()
        loader.kill()
    until(lambda: not path.parent.exists(), "the agent tidies up")
    until(lambda: not psutil.pid_exists(int(pid)), "the agent ends")


@pytest.mark.usefixtures("new_interpreters")
def test_it_is_the_loaders_own_package_that_starts(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another copy in the working directory and on PYTHONPATH, as a checkout that was never built, is left alone."""
    for name in ("sophon_loader", "storage_agent"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise RuntimeError('the {name} that is not meant')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    process = LocalAgentProcess(str(root), LOCAL)
    try:
        endpoint = f"ipc://{_socket_of(process)}"
        workers = LOCAL.workers
        until(lambda: ask_status(endpoint, WAIT_S)["workers"] == workers, "its worker processes run as well")
    finally:
        process.close()
