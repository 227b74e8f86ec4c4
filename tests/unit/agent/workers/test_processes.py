"""What starting workers leaves behind in the broker's process, and in the temporary folder."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.record import REPOSITORY
from storage_agent.workers.warm_parent import WarmParent
from tests.support.agents import until
from tests.support.held import settled_descriptors

START = """
from storage_agent.workers.warm_parent import WarmParent

parent = WarmParent(["tests.support.until_no_file"])
for text in ("one", "another"):
    process = parent.process(target=print, args=(text,))
    parent.start(process)
    process.join()
parent.end()
"""


@pytest.fixture
def parent() -> Iterator[Any]:
    """One that imports nothing."""
    parent: Any = WarmParent([])
    yield parent
    _end(parent)


def test_no_descriptor_is_left_of_a_forkserver_that_has_been_killed(parent: Any) -> None:
    counts = []
    for _ in range(3):
        process = parent.process(target=int)
        parent.start(process)
        process.join()
        process.close()
        counts.append(settled_descriptors())
        parent.end()
        until(lambda: psutil.Process(parent._forkserver_pid).status() == psutil.STATUS_ZOMBIE, "it has ended")
    assert counts[2] == counts[1], "it was one more each time"


def test_a_forkserver_that_is_about_to_end_is_waited_for(parent: Any, tmp_path: Path) -> None:
    """Killed, it refuses connections a moment before it can be seen to have ended: here, its socket is another one."""
    codes = []
    with socket.socket(socket.AF_UNIX) as refusing:
        refusing.bind(str(tmp_path / "nobody listens"))
        for _ in range(2):
            process = parent.process(target=int)
            parent.start(process)
            process.join()
            codes.append(process.exitcode)
            pid, parent._forkserver_address = parent._forkserver_pid, refusing.getsockname()
    assert codes == [0, 0] and pid == parent._forkserver_pid


def test_one_that_still_imports_keeps_no_other_from_starting(tmp_path: Path, parent: Any) -> None:
    """An agent's workers without torch start while the parent of those with it imports that."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    slow: Any = WarmParent(["runpy", "slow"])
    thread = threading.Thread(target=_started, args=(slow,), daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # where the forkserver finds modules
        thread.start()
        until(lambda: slow._forkserver_pid is not None, "the slow one runs")
    process = parent.process(target=int)
    parent.start(process)
    process.join()
    assert process.exitcode == 0 and thread.is_alive()
    _end(slow)
    thread.join(10.0)
    assert not thread.is_alive()


def _end(parent: Any) -> None:
    parent.end()
    with contextlib.suppress(PermissionError):  # it would remove the name of its socket
        parent._stop()


def _started(parent: WarmParent) -> None:
    with contextlib.suppress(EOFError, OSError):
        parent.start(parent.process(target=int))


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
