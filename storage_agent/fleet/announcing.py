"""The agent's entry in a folder in which loaders look for agents: written while it serves, then removed."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.host.endpoints import host_of
from sophon_loader.host.kept_file import KeptFile, new_file
from sophon_loader.wire.entry import (
    GONE_S,
    MAX_ENTRY_NBYTES,
    REWRITTEN_S,
    SUFFIX,
    AgentEntry,
    host_and_port,
    is_endpoint,
)
from storage_agent.host.log import EventLog

CLOSE_S = 2.0
"""Time limit for removing the entry at an agent's end, in seconds; later, loaders know by its age that it is gone."""
_PREFIX = "sophon-agent-"
_ANY = ("0.0.0.0", "::", "*", "")
"""Hosts of an agent that listens at all interfaces."""


def announced_address(endpoint: str, announce_as: str = "") -> str:
    """Return the address that an agent announces: this host's name if it listens at all interfaces.

    Args:
        endpoint: `tcp://host:port` at which it listens.
        announce_as: `HOST` or `HOST:PORT` to announce instead.

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
    """Check that a file can be written there, by writing one.

    Raises:
        ConfigError: there is no such folder, it may not be written to, or its disk is full.
    """
    try:
        os.unlink(new_file(folder, " " * 1024, _PREFIX))
    except OSError as error:
        raise ConfigError(
            f"--announce must be an existing folder that can be written to, got {folder}: {error.strerror or error}; "
            f"make it, give this user the right to write there, or free space on its disk"
        ) from error


class Announcer:
    """Keeps the entry of one agent (see `KeptFile`).

    The entry is named after the address, so that a restarted agent takes the place of its killed predecessor.

    Args:
        folder: holds the entries of all agents.
        entry: to be announced.
        log: for errors; only this thread uses it.

    Raises:
        ConfigError: the entry is too long.

    Example:
        >>> announcer = Announcer(Path("/shared/run/agents"), AgentEntry([address], instance, ["imagenet"]), EventLog())
        >>> announcer.start()
        >>> announcer.leave()  # at SIGTERM: loaders are to look elsewhere, while the last requests are answered
        >>> announcer.close()
    """

    def __init__(self, folder: Path, entry: AgentEntry, log: EventLog) -> None:
        self._log = log
        text = entry.text()
        if len(text) > MAX_ENTRY_NBYTES:
            raise ConfigError(
                f"what is announced must have at most {MAX_ENTRY_NBYTES >> 10} KiB, got {len(text)} bytes; serve "
                "fewer exports from one agent"
            )
        self.path = folder / _file_name(entry.addresses)
        self._failed: str | None = None
        self._kept = KeptFile(
            self.path, text, prefix=_PREFIX, every_s=REWRITTEN_S, told=self._written, thread="announcer"
        )

    def start(self) -> None:
        """Announce the agent from now on."""
        self._kept.start()

    def leave(self) -> None:
        """Have the entry removed soon, without waiting for it."""
        self._kept.leave()

    def close(self) -> None:
        """Remove the entry, or stop waiting if the disk takes too long. Safe to call twice, and without `start`."""
        self._kept.close(CLOSE_S)

    def _written(self, reason: str, took_s: float) -> None:
        """Log that the entry was written, cannot be, or was again; each once."""
        if not reason and took_s > GONE_S - REWRITTEN_S:
            reason = f"its disk took {took_s:.0f} s to write it"
        if reason and not self._failed:
            remedy = f"loaders take this agent for gone after {GONE_S:g} s; see to the folder"
            self._log.warning("agent not announced", folder=str(self.path.parent), reason=reason, remedy=remedy)
        elif self._failed is None or (self._failed and not reason):
            self._log.info("agent announced", file=str(self.path))
        self._failed = reason


def _file_name(addresses: Sequence[str]) -> str:
    named = re.sub(r"[^A-Za-z0-9._-]+", "_", addresses[0].removeprefix("tcp://"))
    return f"{_PREFIX}{named[:200]}{SUFFIX}"
