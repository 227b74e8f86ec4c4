"""What an agent is told at its start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.wire.entry import host_and_port
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES

MIN_WORKER_NBYTES = 256 << 20
"""Of a worker's memory: a picture of 2^25 px twice."""

_BIND_LIKE = "write tcp://HOST:PORT, such as tcp://0.0.0.0:5555"


@dataclass(frozen=True)
class Indexed:
    """What an export of archives or of a far store is, as the agent's start found it.

    Args:
        index: path of their index.
        containers: paths of the archives, by their number in the index.
        fetcher: where the process listens that reads objects of a far store.
        kept: whether the index is a listing that later starts take too, rather than this start's own.
    """

    index: str
    containers: tuple[str, ...] = ()
    fetcher: str = ""
    kept: bool = False


@dataclass(frozen=True)
class AgentSettings:
    """The settings of `sophon-agent serve`.

    Args:
        exports: name -> location: a folder, or what another store takes (see `stores/`, which looks at it); the name is
            what loaders write behind the address.
        bind: ZeroMQ endpoint; a port of 0 or `*` takes a free one, `ipc://*` a Unix socket in a private folder.
        keys: folder of the agent's keys and of those it lets in, see `clients/key_files.py`; None: whoever reaches it
            is let in.
        insecure: that this is meant, where other hosts reach it.
        workers: processes that run ops.
        readers: threads that read files which cross as they are.
        ops: modules to import for their `register_op` calls.
        limit_mbit: pace replies to this many Mbit/s; None for no limit.
        max_outstanding: unanswered requests (samples, listings, ...) that one loader connection may have.
        max_queued: samples waiting for a worker above which further ones are answered with `file`.
        max_file_nbytes: larger files are refused.
        drain_s: how long a stop waits for work in flight.
        job_s: how long a worker may take for one sample, and for what it was sent before it did that; then it is
            replaced, and the files go out.
        worker_nbytes: memory that a worker may take beyond what all of them share.
        max_px: that an image may have behind an op, or a file's picture; larger ones are the loader's.
        links_out: whether links in a folder may lead out of it: for the agent that a loader starts for itself, as the
            user whose files they are.
        nice: how much workers give way to other processes of this host.
        index_folder: where indexes of archives are kept; None for the usual one.
        announce: folder in which the agent says that it is there; None to say it nowhere.
        metrics: host and port at which Prometheus reads the numbers of the status; None for nowhere.
        announce_as: `HOST` or `HOST:PORT` to be said there; "" for where it listens.
        indexed: name -> index, of the exports that are archives or far; the agent's start finds them for its workers.

    Example:
        >>> AgentSettings({"photos": "/data/photos"}, bind="tcp://127.0.0.1:5555", workers=8).max_queued
        4096
    """

    exports: Mapping[str, str]
    bind: str
    workers: int
    readers: int = 2
    ops: tuple[str, ...] = ()
    limit_mbit: float | None = None
    max_outstanding: int = 1024
    max_queued: int = 4096
    max_file_nbytes: int = 256 << 20
    drain_s: float = 10.0
    job_s: float = 30.0
    worker_nbytes: int = 2 << 30
    max_px: int = 64_000_000
    nice: int = 0
    keys: Path | None = None
    insecure: bool = False
    links_out: bool = False
    index_folder: Path | None = None
    announce: Path | None = None
    announce_as: str = ""
    metrics: tuple[str, int] | None = None
    indexed: Mapping[str, Indexed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.exports:
            raise ConfigError("at least one export must be given, got none; add --export NAME=FOLDER")
        for name in self.exports:
            if not name or "/" in name or name.startswith("."):
                raise ConfigError(
                    f"export name must be a plain word, without / and not beginning with a dot, got {name!r}; loaders "
                    "write it behind the agent's address"
                )
        if not self.bind.startswith(("tcp://", "ipc://")):
            raise ConfigError(f"--bind must start with tcp:// or ipc://, got {self.bind!r}; {_BIND_LIKE}")
        port = self.bind.rsplit(":", 1)[-1]
        if self.bind.startswith("tcp://") and port != "*" and not (port.isdecimal() and int(port) < 1 << 16):
            raise ConfigError(f"--bind must end with a port from 0 to 65535 or *, got {self.bind!r}; {_BIND_LIKE}")
        if self.keys is None and not self.insecure and not is_private(self.bind):
            raise ConfigError(
                f"an agent that other hosts can reach must have keys, got none for {self.bind}; add --keys FOLDER, or "
                "--insecure to serve everyone"
            )
        if self.links_out and not self.bind.startswith("ipc://"):
            raise ConfigError(f"--links-out must go with a Unix socket, got {self.bind}; serve the folder they lead to")
        if self.announce is not None and not self.bind.startswith("tcp://"):
            raise ConfigError(
                f"--announce must go with a --bind of tcp://, got {self.bind}; no other host reaches that"
            )
        if self.announce_as and self.announce is None:
            raise ConfigError(f"--announce-as must go with --announce FOLDER, got {self.announce_as!r} alone")
        if self.announce_as and host_and_port(self.announce_as) is None:
            raise ConfigError(
                f"--announce-as must be HOST or HOST:PORT, such as fileserver:5555 or [2001:db8::7]:5555, got "
                f"{self.announce_as!r}"
            )
        for name in ("workers", "readers", "max_outstanding", "max_queued"):
            if getattr(self, name) < 1:
                option = name if name == "max_outstanding" else f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} must be at least 1, got {getattr(self, name)}")
        if self.limit_mbit is not None and not self.limit_mbit > 0:
            raise ConfigError(f"--limit-mbit must be above 0, got {self.limit_mbit}; leave it out for no limit")
        if not 1 <= self.max_file_nbytes <= MAX_PAYLOAD_NBYTES:
            raise ConfigError(
                f"--max-file-mb must be from 1 to {MAX_PAYLOAD_NBYTES >> 20}, got {self.max_file_nbytes / (1 << 20):g}"
            )
        if not 0 < self.job_s < math.inf:
            raise ConfigError(f"--job-seconds must be above 0, got {self.job_s}")
        if not self.worker_nbytes >= MIN_WORKER_NBYTES:
            least = MIN_WORKER_NBYTES >> 20
            raise ConfigError(f"--worker-memory-mb must be at least {least}, got {self.worker_nbytes >> 20}")
        if self.max_px < 1:
            raise ConfigError(f"--max-megapixels must be above 0, got {self.max_px / 1e6:g}")
        if not 0 <= self.nice <= 19:
            raise ConfigError(f"--nice must be from 0 to 19, got {self.nice}")
        if not 0 <= self.drain_s < math.inf:
            raise ConfigError(f"drain_s must be a number of seconds, got {self.drain_s}")


def is_private(bind: str) -> bool:
    """Whether no other host reaches what is bound there."""
    return re.match(r"ipc://|tcp://(127(\.\d+){3}|localhost|\[::1\]):", bind) is not None
