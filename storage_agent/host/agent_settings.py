"""The settings of an agent, given at its start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sophon_loader.errors import ConfigError
from sophon_loader.host.installed import torch_lacking
from sophon_loader.wire.entry import host_and_port
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES

MIN_WORKER_NBYTES = 256 << 20
"""Minimum memory of a worker, bytes: twice a picture of 2^25 px."""

_BIND_LIKE = "write tcp://HOST:PORT, such as tcp://0.0.0.0:5555"


@dataclass(frozen=True)
class Indexed:
    """The index of an export of archives or of a far store, as the agent's start found it.

    Args:
        index: path of the index.
        containers: paths of the archives, by their number in the index.
        fetcher: address of the process that reads objects of a far store.
        unpacked: paths of the archives' unpacked pictures, by the same number; none where no archive has any.
        kept: True if the index is a listing that later starts use as well; False if it belongs to this start.
    """

    index: str
    containers: tuple[str, ...] = ()
    fetcher: str = ""
    kept: bool = False
    unpacked: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentSettings:
    """The settings of `sophon-agent serve`.

    Args:
        exports: name -> location: a folder, or the location of another store (checked in `stores/`); loaders write the
            name behind the address.
        bind: ZeroMQ endpoint; a port of 0 or `*` takes a free one, `ipc://*` a Unix socket in a private folder.
        keys: folder of the agent's key and of the keys it lets in, see `clients/key_files.py`; None to let every client
            in.
        insecure: True to allow `keys=None` although other hosts reach the agent.
        workers: number of processes that run programs.
        op_workers: number of processes that run named ops, started when these are first needed; None for as many.
        readers: number of threads that read files which cross unchanged.
        ops: modules to import for their `register_op` calls.
        limit_mbit: rate of all replies in Mbit/s; None for no limit.
        max_outstanding: maximum number of unanswered requests (samples, listings, ...) of one loader connection.
        max_queued: number of samples waiting for a worker above which further ones are answered with `file`.
        max_file_nbytes: larger files are refused.
        drain_s: seconds that a stop waits for work in flight.
        job_s: seconds that a worker may take for one sample, including preparations for it. After that it is replaced,
            and its files are sent unprocessed.
        worker_nbytes: memory that a worker may take beyond the memory that all workers share.
        max_px: maximum size of an image after an op, and of a file's picture; larger ones are left to the loader.
        links_out: True if links in a folder may lead out of it. For the agent that a loader starts for itself, as the
            user who owns the files.
        nice: niceness of the workers.
        index_folder: folder for indexes of archives; None for the usual one.
        announce: folder in which the agent announces itself; None for none.
        metrics: host and port that Prometheus reads the status from; None for none.
        announce_as: `HOST` or `HOST:PORT` to announce; "" for the address it listens on.
        indexed: name -> index, for exports that are archives or far; the agent's start makes them for its workers.

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
    op_workers: int | None = None
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
        if self.op_workers is not None and self.op_workers < 0:
            raise ConfigError(f"--op-workers must be at least 0, got {self.op_workers}")
        if self.op_workers == 0 and self.ops:
            raise ConfigError(f"--ops must be left out where --op-workers is 0, got --ops {self.ops[0]}; leave out one")
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

    @property
    def op_workers_at_most(self) -> int:
        """Number of processes that may run named ops."""
        if self.ops_lacking:
            return 0
        return self.workers if self.op_workers is None else self.op_workers

    @property
    def ops_lacking(self) -> str:
        """Reason why this agent runs no named ops; "" if it does."""
        if self.op_workers == 0:
            return "--op-workers is 0"
        return f"not installed: {torch_lacking()}" if torch_lacking() else ""


def is_private(bind: str) -> bool:
    """True if no other host can reach an endpoint."""
    return re.match(r"ipc://|tcp://(127(\.\d+){3}|localhost|\[::1\]):", bind) is not None
