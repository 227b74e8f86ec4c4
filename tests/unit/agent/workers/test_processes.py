"""What starting workers leaves behind in the broker's process, and in the temporary folder."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.record import REPOSITORY
from storage_agent.workers import processes
from tests.conftest import PRELOADED
from tests.support.agents import until
from tests.support.held import settled_descriptors

START = """
import multiprocessing
from storage_agent.workers import processes

spawner = multiprocessing.get_context("forkserver")
spawner.set_forkserver_preload(["tests.support.until_no_file"])
for text in ("one", "another"):
    process = spawner.Process(target=print, args=(text,))
    processes._start(process)
    process.join()
processes._end_forkserver()
"""


@pytest.fixture(autouse=True)
def nothing_to_import() -> Iterator[None]:
    """What the tests' forkservers import otherwise takes seconds, and here each has one process."""
    multiprocessing.set_forkserver_preload([])
    yield
    multiprocessing.set_forkserver_preload(PRELOADED)


def test_no_descriptor_is_left_of_a_forkserver_that_has_been_killed() -> None:
    spawner, counts = multiprocessing.get_context("forkserver"), []
    server: Any = forkserver._forkserver
    try:
        for _ in range(3):
            process = spawner.Process(target=int)
            processes._start(process)
            process.join()
            process.close()
            counts.append(settled_descriptors())
            processes._end_forkserver()
            until(lambda: psutil.Process(server._forkserver_pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    finally:
        with contextlib.suppress(PermissionError):  # it would remove the name of its socket
            server._stop()
        server._forkserver_address = None
    assert counts[2] == counts[1], "it was one more each time"


def test_a_forkserver_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    """Killed, it refuses connections a moment before it can be seen to have ended: here, its socket is another one."""
    spawner, codes = multiprocessing.get_context("forkserver"), []
    server: Any = forkserver._forkserver
    try:
        with socket.socket(socket.AF_UNIX) as refusing:
            refusing.bind(str(tmp_path / "nobody listens"))
            for _ in range(2):
                process = spawner.Process(target=int)
                processes._start(process)
                process.join()
                codes.append(process.exitcode)
                pid, server._forkserver_address = server._forkserver_pid, refusing.getsockname()
        assert codes == [0, 0] and pid == server._forkserver_pid
    finally:
        processes._end_forkserver()
        with contextlib.suppress(PermissionError):
            server._stop()
        server._forkserver_address = None


def test_no_file_is_there_while_the_forkserver_imports(tmp_path: Path) -> None:
    """An agent that is killed in these seconds leaves none, then."""
    done = subprocess.run(
        [sys.executable, "-c", START],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout.split(), done.returncode) == (["one", "another"], 0), done.stderr
    assert os.listdir(tmp_path) == []
