"""Writes and reads the line that an agent prints once loaders can connect to it."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sophon_loader.errors import AgentUnreachable, MalformedMessage

START_S = 60.0
"""Seconds that an agent may take to announce itself. A worker needs some seconds to import torch, and several times
that on a busy machine."""


@dataclass(frozen=True)
class Announcement:
    """Address and exports of a started agent: one line of JSON on its standard output.

    Args:
        endpoint: `tcp://host:port`, without an export.
        exports: folders by the exports' names.
        workers: number of processes that run ops.
        pid: process id of the agent.

    Example:
        >>> Announcement.parse('{"endpoint": "tcp://127.0.0.1:5555", "exports": {}, "workers": 2, "pid": 1}').workers
        2
    """

    endpoint: str
    exports: Mapping[str, str]
    workers: int
    pid: int

    def line(self) -> str:
        """Return the line without its newline, in ASCII."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(line: str | bytes) -> Announcement:
        """Read what `line` wrote.

        Raises:
            MalformedMessage: the line is not an announcement.
        """
        try:
            return Announcement(**json.loads(line))
        except (ValueError, TypeError, RecursionError) as error:
            raise MalformedMessage(f"an agent must announce itself in a line of JSON, got {line!r}: {error}") from error


class Awaited:
    """Waits for a starting agent's announcement, piece by piece.

    Args:
        process: started with stdout=subprocess.PIPE, from which the line is read.
        timeout_s: seconds that it may take, from now on.

    Example:
        >>> awaited = Awaited(process)
        >>> while (found := awaited.heard(wait_s=0.1)) is None:
        ...     print("it still starts")
    """

    def __init__(self, process: subprocess.Popen[Any], timeout_s: float = START_S) -> None:
        assert process.stdout is not None, "start the agent with stdout=subprocess.PIPE"
        self._process = process
        self._stdout = process.stdout
        self._timeout_s = timeout_s
        self._end_s = time.monotonic() + timeout_s
        self._said = b""

    def heard(self, wait_s: float) -> Announcement | None:
        """Return the announcement; None if it has not arrived within `wait_s` seconds.

        Raises:
            AgentUnreachable: the agent ended, or `timeout_s` has passed.
        """
        end_s = time.monotonic() + wait_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while selector.select(max(0.0, end_s - time.monotonic())):
                chunk = os.read(self._stdout.fileno(), 4096)
                if not chunk:
                    raise AgentUnreachable(
                        f"an agent must start, got one that ended with status {self._process.wait()}; its own words "
                        "are on standard error"
                    )
                self._said += chunk
                if b"\n" in self._said:
                    return Announcement.parse(self._said.partition(b"\n")[0])
        if time.monotonic() >= self._end_s:
            raise AgentUnreachable(
                f"an agent must start within {self._timeout_s:g} s, got no whole announcement, but {self._said!r}; "
                "its own words are on standard error"
            )
        return None


def announced(process: subprocess.Popen[Any], timeout_s: float = START_S) -> Announcement:
    """Wait for a starting agent and return its announcement.

    Args:
        process: started with stdout=subprocess.PIPE, from which the line is read.
        timeout_s: seconds to wait, from now on.

    Raises:
        AgentUnreachable: the agent ended, or did not announce itself within `timeout_s`.
    """
    awaited = Awaited(process, timeout_s)
    while (found := awaited.heard(timeout_s)) is None:
        pass
    return found
