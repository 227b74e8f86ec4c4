"""What starting workers leaves behind in the broker's process."""

from __future__ import annotations

import contextlib
import multiprocessing
from multiprocessing import forkserver
from typing import Any

import psutil

from storage_agent.workers import processes
from tests.support.agents import until


def test_no_descriptor_is_left_of_a_forkserver_that_has_been_killed() -> None:
    spawner, counts = multiprocessing.get_context("forkserver"), []
    server: Any = forkserver._forkserver
    try:
        for _ in range(3):
            process = spawner.Process(target=int)
            processes._start(process)
            process.join()
            process.close()
            counts.append(psutil.Process().num_fds())
            processes._end_forkserver()
            until(lambda: psutil.Process(server._forkserver_pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    finally:
        with contextlib.suppress(PermissionError):  # it would remove the name of its socket
            server._stop()
        server._forkserver_address = None
    assert counts[2] == counts[1], "it was one more each time"
