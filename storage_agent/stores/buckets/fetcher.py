"""The process that reads far stores, as the agent's main process has it: started, watched, started again, ended.

That process holds the stores' credentials and a TLS stack, and no loader's key; this one imports neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping

from sophon_loader.errors import ConfigError
from sophon_loader.figures import duration
from storage_agent.host.log import EventLog
from storage_agent.stores.buckets.outages import AWAY_S

_AGAIN_S = 0.5
"""The pause before it is started again."""
_BACKLOG = 128
_CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_")
"""How the names begin of the environment's variables that are for the fetching process alone."""
_LOADERS = ("SOPHON_KEY",)
"""Those that it does not get."""


class Fetcher:
    """The fetching process of an agent, for all of its far exports; owned by the thread that starts and closes it.

    It listens on a socket that this process has made and keeps, so whoever asks while it is started again only waits.
    It ends when its standard input is closed, so with this process at the latest.

    Example:
        >>> fetcher = Fetcher()
        >>> fetcher.start()
        '@sophon-fetch-5b0c...'
        >>> fetcher.close()

    Attributes:
        away: locations of stores that are away at the moment.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._closing = threading.Event()
        self._lock = threading.Lock()
        """Held while it is started, or told to end."""
        self._counting = threading.Lock()
        self._counted: dict[int, tuple[int, float]] = {}
        """Process -> how often a store has asked it for fewer requests, and its CPU seconds."""
        self.away: frozenset[str] = frozenset()
        self._log = EventLog()

    def start(self) -> str:
        """Start it unless it runs; where it listens. This process's environment has no credentials any more then.

        Raises:
            ConfigError: it does not start.
        """
        with self._lock:
            if self._listener is None:
                self._environment = {name: value for name, value in os.environ.items() if name not in _LOADERS}
                self._listener = _listening()
                self._process = self._started()
                for name in [name for name in os.environ if name.startswith(_CREDENTIALS)]:
                    del os.environ[name]
                threading.Thread(target=self._watch, name="watch-fetcher", daemon=True).start()
            address: bytes = self._listener.getsockname()
            return "@" + address[1:].decode()

    def close(self) -> None:
        """End it. Safe to call twice."""
        self._closing.set()
        with self._lock:
            if self._process is not None:
                _end(self._process)
            if self._listener is not None:
                self._listener.close()

    def told(self, pid: int, slow_downs: int, cpu_s: float) -> None:
        """What a fetching process has counted since it started, in order or not; any thread may say it."""
        with self._counting:
            before, before_s = self._counted.get(pid, (0, 0.0))
            self._counted[pid] = max(before, slow_downs), max(before_s, cpu_s)

    @property
    def environment(self) -> Mapping[str, str]:
        """What it reads with: this process's environment, as it was at the start."""
        return self._environment or os.environ

    @property
    def slow_downs(self) -> int:
        """How often stores have asked for fewer requests."""
        return sum(slow_downs for slow_downs, _ in list(self._counted.values()))

    @property
    def cpu_s(self) -> float:
        """CPU seconds that fetching has taken."""
        return sum(cpu_s for _, cpu_s in list(self._counted.values()))

    def _started(self) -> subprocess.Popen[bytes]:
        assert self._listener is not None
        number = self._listener.fileno()
        command = [sys.executable, "-m", "storage_agent.stores.buckets.fetch_child", str(number)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen(command, pass_fds=[number], env=self._environment, **pipes)  # type: ignore[call-overload]
        if not process.stdout.readline():
            _end(process)
            raise ConfigError(
                f"the process that reads far stores must start, but it ended with status {process.returncode}; see "
                "what it wrote above"
            )
        made: subprocess.Popen[bytes] = process
        return made

    def _watch(self) -> None:
        """Hear of stores that are away, and start it again whenever it ends: it may have been killed for the memory
        that it took."""
        while True:
            assert self._process is not None and self._process.stdout is not None
            self._hear(self._process.stdout)
            status = self._process.wait()
            self.away = frozenset()
            if self._closing.is_set():
                return
            self._log.warning("fetching process ended", status=status, remedy="it is started again")
            while not self._closing.wait(_AGAIN_S):
                with self._lock, contextlib.suppress(ConfigError, OSError):
                    if not self._closing.is_set():
                        _end(self._process)
                        self._process = self._started()
                    break

    def _hear(self, lines: Iterable[bytes]) -> None:
        """Take in what it says of stores, until it ends; see `objects.py`."""
        with contextlib.suppress(ValueError):  # it has been ended by this process
            for line in lines:
                location, why, seconds = json.loads(line)
                if why:
                    self.away |= {location}
                    remedy = f"samples wait for it for up to {duration(AWAY_S)}; see that this host reaches it"
                    self._log.warning("store away", location=location, reason=why, remedy=remedy)
                else:
                    self.away -= {location}
                    self._log.info("store back", location=location, after=duration(seconds))


def _listening() -> socket.socket:
    """A socket with a name that is in no folder, so that none is left behind; who connects is looked at."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0sophon-fetch-{secrets.token_hex(16)}")
    listener.listen(_BACKLOG)
    return listener


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
