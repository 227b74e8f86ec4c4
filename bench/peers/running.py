"""Start a system's processes on a host, and talk to them; the other end is process.py."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from bench.peers.environments import Installed, Unavailable
from bench.peers.systems import Settings
from bench.testbed import REPOSITORY, Host

ANSWER_S = 120.0
"""For a start or an epoch; a process that takes longer is killed."""
END_S = 10.0


@dataclass(frozen=True)
class Process:
    """A process that answers lines."""

    child: subprocess.Popen[str]
    errors: IO[bytes]

    def order(self, what: str) -> dict[str, Any]:
        """Have it do something, and read its answer.

        Raises:
            Unavailable: it has ended instead.
        """
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self.child.stdin.write(what + "\n")
            self.child.stdin.flush()
        return self.answer(what)

    def answer(self, what: str) -> dict[str, Any]:
        assert self.child.stdout is not None
        watchdog = threading.Timer(ANSWER_S, self.child.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            line = self.child.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            self.child.wait(END_S)
            raise Unavailable(f"`{what}` failed: {self.last_words()}")
        row: dict[str, Any] = json.loads(line)
        return row

    def last_words(self) -> str:
        if self.child.returncode == -9:
            return f"no answer within {ANSWER_S:g} s"
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), f"exit status {self.child.returncode}")


@contextmanager
def process(host: Host, core: int, each: Installed, role: str, settings: Settings) -> Iterator[Process]:
    """A process of a system that has said that it is ready. It has a folder of its own, and ends with the block.

    Raises:
        Unavailable: it ended before that.
    """
    with TemporaryDirectory(prefix="sophon-peers-") as folder, TemporaryFile() as errors:
        command = [str(each.python), "-m", "bench.peers.process", role, replace(settings, folder=folder).to_json()]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
        child = host.popen(command, cores={core}, cwd=REPOSITORY, **pipes)
        running = Process(child, errors)
        try:
            running.answer(role)
            yield running
        finally:
            assert child.stdin is not None
            with suppress(BrokenPipeError):
                child.stdin.close()
            try:
                child.wait(END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(END_S)
