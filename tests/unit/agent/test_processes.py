"""The start of worker processes: what it leaves in the temporary folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.record import REPOSITORY

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
