"""The agent's entry in a folder from which loaders learn who the agents are: written while it serves, then removed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.host.endpoints import host_of
from sophon_loader.wire.entry import GONE_S, MAX_ENTRY_NBYTES, REWRITTEN_S, SUFFIX, Entry, host_and_port, is_endpoint
from storage_agent.log import EventLog

CLOSE_S = 2.0
"""How long the end of an agent waits for its entry to be removed; behind that, loaders take it for gone by its age."""
_PREFIX = "sophon-agent-"
_SWEPT_S = 86_400.0
"""An entry so much older than one just written is that of an agent that was killed. Should its agent live, on a disk
that hung, the next writing brings it back."""
_MAX_SWEPT = 10_000
"""Names that are looked at."""
_ANY = ("0.0.0.0", "::", "*", "")
"""Hosts of an agent that listens at all interfaces."""


def announced_address(endpoint: str, announce_as: str = "") -> str:
    """The address that an agent announces: this host's name where it listens at all interfaces.

    Args:
        endpoint: where it listens, `tcp://host:port`.
        announce_as: what it is to say instead, `HOST` or `HOST:PORT`.

    Raises:
        ConfigError: this host has no name that other hosts could look up.
    """
    port = int(endpoint.rpartition(":")[2])
    if announce_as:
        host, other = host_and_port(announce_as) or ("", None)
        address = f"tcp://{host}:{port if other is None else other}"
    elif host_of(endpoint) in _ANY:
        address = f"tcp://{socket.gethostname()}:{port}"
    else:
        address = endpoint
    if not is_endpoint(address):
        raise ConfigError(f"the announced address must be tcp://HOST:PORT, got {address!r}; give --announce-as HOST")
    return address


def check_folder(folder: Path) -> None:
    """See that a file can be written there, by writing one.

    Raises:
        ConfigError: it cannot: there is no such folder, it may not be written to, or its disk is full.
    """
    try:
        temporary = _temporary(folder, " " * 1024)
        os.unlink(temporary)
    except OSError as error:
        raise ConfigError(
            f"--announce must be an existing folder that can be written to, got {folder}: {error.strerror or error}; "
            f"make it, give this user the right to write there, or free space on its disk"
        ) from error


class Announcer:
    """Keeps the entry of one agent, in a thread of its own: a slow disk holds up nobody else.

    The entry is named after the address, so that a restarted agent takes the place of its killed predecessor.

    Args:
        folder: in which the entries of all agents lie.
        entry: to be announced.
        log: for what goes wrong; only this thread uses it.

    Raises:
        ConfigError: the entry is too long.

    Example:
        >>> announcer = Announcer(Path("/shared/run/agents"), Entry([address], instance, ["imagenet"]), EventLog())
        >>> announcer.start()
        >>> announcer.leave()  # at SIGTERM: loaders are to look elsewhere, while the last requests are answered
        >>> announcer.close()
    """

    def __init__(self, folder: Path, entry: Entry, log: EventLog) -> None:
        self._folder = folder
        self._log = log
        self._text = entry.text()
        if len(self._text) > MAX_ENTRY_NBYTES:
            raise ConfigError(
                f"what is announced must have at most {MAX_ENTRY_NBYTES >> 10} KiB, got {len(self._text)} bytes; serve "
                "fewer exports from one agent"
            )
        self.path = folder / _file_name(entry.addresses)
        self._leaving = threading.Event()
        self._failed: str | None = None
        self._thread = threading.Thread(target=self._keep, name="announcer", daemon=True)

    def start(self) -> None:
        """Announce the agent from now on."""
        self._thread.start()

    def leave(self) -> None:
        """Have the entry removed soon, without waiting for that."""
        self._leaving.set()

    def close(self) -> None:
        """Remove the entry, or give that up when the disk takes too long. Safe to call twice, and without `start`."""
        self.leave()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def _keep(self) -> None:
        swept = False
        while not self._leaving.is_set():
            begun_s = time.monotonic()
            try:
                self._write()
                if not swept:
                    self._sweep()
                    swept = True
            except OSError as error:
                self._tell(error.strerror or str(error))
            else:
                took_s = time.monotonic() - begun_s
                self._tell(f"its disk took {took_s:.0f} s to write it" if took_s > GONE_S - REWRITTEN_S else "")
            self._leaving.wait(REWRITTEN_S)
        self._remove()

    def _write(self) -> None:
        temporary = _temporary(self._folder, self._text)
        try:
            os.replace(temporary, self.path)
        except OSError:
            os.unlink(temporary)
            raise

    def _tell(self, reason: str) -> None:
        """Say that the entry has been written, cannot be, or has been again; each once."""
        if reason and not self._failed:
            remedy = f"loaders take this agent for gone after {GONE_S:g} s; see to the folder"
            self._log.warning("agent not announced", folder=str(self._folder), reason=reason, remedy=remedy)
        elif self._failed is None or (self._failed and not reason):
            self._log.info("agent announced", file=str(self.path))
        self._failed = reason

    def _sweep(self) -> None:
        """Remove what killed agents have left, by the clock of whoever keeps the files, which dates them all."""
        newest_s = os.stat(self.path).st_mtime
        with os.scandir(self._folder) as files:
            for _, file in zip(range(_MAX_SWEPT), files, strict=False):
                if file.name.removeprefix(".").startswith(_PREFIX):
                    with contextlib.suppress(OSError):  # another was faster, or it is another user's
                        if newest_s - file.stat(follow_symlinks=False).st_mtime > _SWEPT_S:
                            os.unlink(file.path)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            if self.path.read_text(encoding="ascii") == self._text:  # else another agent has the address now
                self.path.unlink()


def _temporary(folder: Path, text: str) -> str:
    """A new file with a text, which readers do not look at; everybody may read it, since it holds no key."""
    descriptor, path = tempfile.mkstemp(prefix=f".{_PREFIX}", dir=folder)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, 0o644)
            file.write(text)
    except OSError:
        os.unlink(path)
        raise
    return path


def _file_name(addresses: Sequence[str]) -> str:
    named = re.sub(r"[^A-Za-z0-9._-]+", "_", addresses[0].removeprefix("tcp://"))
    return f"{_PREFIX}{named[:200]}{SUFFIX}"
