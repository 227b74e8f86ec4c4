"""What a user can set of a loader's dealings with its agent, and of an agent of its own."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeGuard, get_args

from sophon_loader.errors import ConfigError

AgentMissing = Literal["read-here", "wait", "raise"]
_SWITCHES = {
    "reuse_batch_memory": "batches travel as in torch's DataLoader",
    "progress": "no line is shown while an epoch runs",
    "fused": "Pillow decodes and resizes all pictures",
    "record": "pictures that a dataset of one's own opens are Pillow's",
}


@dataclass(frozen=True)
class OffloadOptions:
    """Limits and time-outs of the loader; the defaults suit a training job on a local network.

    Args:
        window: upper bound on unanswered samples per loader worker. More than 64 are used only if the way to the agent
            is long enough to need them.
        window_nbytes: upper bound on their bytes, estimated from the mean reply, together with the bytes that were
            received and not yet used.
        connect_timeout_s: seconds to wait for the agent's first answer.
        agent_missing: what to do where an agent on another host does not answer when it is first needed: `"read-here"`
            reads the files on this host until it comes, and waits where they are not mounted; `"wait"` waits for it;
            `"raise"` raises the error.
        missing_wait_s: seconds for which it is waited for; then the error is raised.
        heartbeat_s: seconds of silence until the agent is asked whether it is alive.
        dead_after_s: seconds of silence until the agent counts as gone. Files are then read below the dataset's root;
            if they are not there, the sample fails.
        resend_after_s: seconds without a sample from a live agent before requests are sent again; doubled each time,
            three times, then the agent counts as gone. Sooner if the files are below the dataset's root.
        traffic_weight: share of the agent's cores, 0 to 1, that `auto` may use to save traffic where that costs no
            time. With 0 it offloads only what makes an epoch shorter.
        cost_per_gb: seconds of training that you would trade for one gigabyte less traffic, under `auto`. Example: a
            link at $0.09 per GB and a job at $3 per hour: 108. The epoch may then take longer.
        verify: share of the agent's samples, 0 to 1, that are computed here too and compared bit by bit; which ones
            depends on their random numbers only. If above 0 and the files are here, the first 16 of a run are added.
        reuse_batch_memory: whether workers put batches into shared memory that is used again. With False, batches
            travel as in torch's DataLoader, which takes more CPU time.
        fused: whether C of our own decodes, resizes and finishes pictures whose files are here or come whole. With
            False, Pillow and torchvision make the same values, which takes more CPU time.
        record: whether pictures that a dataset of any class opens by `PIL.Image.open` are decoded by C of our own, as
            far as its samples look at them. That is done where its first samples are the same either way. With False,
            a dataset whose class is not known runs as in torch's DataLoader.
        cache: a folder on a disk of this host in which whole files are kept that an agent has sent, or that were read
            over a mount; later epochs and jobs read them from there. The files must be mounted here too, since a copy
            is served only while the mounted file has the size and times of change that it had; or lie in archives or
            a far store, of whose content the agent tells a digest. None for no cache.
        cache_gb: room that the cache may take on that disk, in 10^9 bytes.
        log: path of a file to which each second of training adds a line, for `sophon-report`. `{rank}` and `{loader}`
            in it are filled in, else added where they are not 0, so that no two loaders share a file. None: no log.
        key: for an agent that has keys: the token that it made, or the path of the file with it. None: the environment
            variable `SOPHON_KEY`, else the file `~/.config/sophon/keys/HOST:PORT` if it exists.
        group, groups: of several agents, those to be asked as long as they keep up: the name of this rank's group, such
            as its rack or rail, and the agents of each group, as hosts, addresses or networks.
        roots: for a dataset of a class of its own: folders on this host, and the folder below the agent's address that
            holds the same files as each; "" is the address's own. Files elsewhere are read on this host. {}: the folder
            is found by the first files that the dataset opens.
        metrics_port: where Prometheus reads this process's loaders, at `http://127.0.0.1:PORT/metrics`; each further
            rank of this host has the next port. Needs the extra `metrics`. None for no port.
        progress: whether a line on the terminal says how fast an epoch goes, and what limits it; at rank 0.

    Example:
        >>> OffloadOptions(window_nbytes=8 << 20, dead_after_s=30.0).heartbeat_s
        2.0

    Raises:
        ConfigError: a value that cannot work.
    """

    window: int = 512
    window_nbytes: int = 32 << 20
    connect_timeout_s: float = 5.0
    agent_missing: AgentMissing = "read-here"
    missing_wait_s: float = 300.0
    heartbeat_s: float = 2.0
    dead_after_s: float = 10.0
    resend_after_s: float = 10.0
    traffic_weight: float = 0.5
    cost_per_gb: float = 0.0
    verify: float = 0.001
    reuse_batch_memory: bool = True
    fused: bool = True
    record: bool = True
    cache: str | None = None
    cache_gb: float | None = None
    log: str | os.PathLike[str] | None = None
    key: str | None = field(default=None, repr=False)
    group: str = ""
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    roots: Mapping[str, str] = field(default_factory=dict)
    metrics_port: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, what in (("window", "samples"), ("window_nbytes", "bytes")):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number of {what}, at least 1, got {value!r}")
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_s") and not (_is_number(value) and 0 < value < math.inf):
                raise ConfigError(f"{one.name} must be a positive number of seconds, got {value!r}")
        if self.agent_missing not in get_args(AgentMissing):
            raise ConfigError(
                f"agent_missing must be 'read-here', 'wait' or 'raise', got {self.agent_missing!r}; with 'read-here', "
                "mounted files are read until the agent comes"
            )
        for name in ("traffic_weight", "verify"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value <= 1):
                raise ConfigError(f"{name} must be a number from 0 to 1, got {value!r}; 0.1 stands for 10 %")
        if not (_is_number(self.cost_per_gb) and 0 <= self.cost_per_gb < math.inf):
            raise ConfigError(
                f"cost_per_gb must be a number of seconds, at least 0, got {self.cost_per_gb!r}; 0 means that traffic "
                "is free"
            )
        for name, otherwise in _SWITCHES.items():
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(f"{name} must be True or False, got {value!r}; with False, {otherwise}")
        self._check_cache()
        port = self.metrics_port
        if port is not None and (type(port) is not int or not 0 < port < 1 << 16):
            raise ConfigError(f"metrics_port must be a port from 1 to 65535, got {port!r}; leave it out for no metrics")
        if self.log is not None:
            object.__setattr__(self, "log", _checked_log(self.log))
        if self.key is not None and not isinstance(self.key, str):
            raise ConfigError(
                f"key must be a token or the path of its file, as text, got a {type(self.key).__name__}; write str(...)"
            )
        if not (isinstance(self.groups, Mapping) and all(map(_is_group, self.groups.items()))):
            raise ConfigError(
                f"groups must say which agents each group has, got {self.groups!r}; for example, write "
                "{'rack-1': ['fileserver-a', '10.1.0.0/16'], 'rack-2': ['tcp://fileserver-b:5555']}"
            )
        if self.group not in (self.groups or [""]):
            raise ConfigError(
                f"group must be one of {', '.join(map(repr, self.groups)) or 'groups, which is empty'}, got "
                f"{self.group!r}; it is the name of this rank's group"
            )

        if not (isinstance(self.roots, Mapping) and all(map(_is_root, self.roots.items()))):
            raise ConfigError(
                "roots must say which folder below the agent's address holds the files of an absolute path on this "
                f"host, got {self.roots!r}; for example, write {{'/mnt/photos': '', '/mnt/masks': 'train/masks'}}"
            )

    def _check_cache(self) -> None:
        cache, room = self.cache, self.cache_gb
        if cache is not None and not (isinstance(cache, str) and cache and "\0" not in cache):
            raise ConfigError(f"cache must be the path of a folder, as text, got {cache!r}; None is no cache")
        if room is not None and not (_is_number(room) and 0 < room < math.inf):
            raise ConfigError(f"cache_gb must be a positive number of gigabytes, got {room!r}")
        if (cache is None) != (room is None):
            raise ConfigError(
                f"cache and cache_gb must be given together, got cache={cache!r} and cache_gb={room!r}; for example, "
                "write cache='/nvme/sophon', cache_gb=200"
            )


@dataclass(frozen=True)
class LocalAgent:
    """An agent on this host that the loader starts, and that ends with it; `agent="local"` is one with the defaults.

    Args:
        workers: number of its worker processes; None for one per core.
        limit_mbit: rate of its replies in Mbit/s, to imitate a slow network: files then come from it too. None for no
            limit.
        ops: names of modules that it imports, because they call `register_op`.

    Example:
        >>> LocalAgent(workers=2, ops=("my_ops",)).limit_mbit is None
        True

    Raises:
        ConfigError: a value that cannot work.
    """

    workers: int | None = None
    limit_mbit: float | None = None
    ops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise ConfigError(
                f"workers must be a whole number of processes, at least 1, got {self.workers!r}; None is one per core"
            )
        limit = self.limit_mbit
        if limit is not None and not (_is_number(limit) and 0 < limit < math.inf):
            raise ConfigError(f"limit_mbit must be a positive number of Mbit/s, got {limit!r}; None is no limit")
        if not isinstance(self.ops, (tuple, list)) or not all(isinstance(name, str) for name in self.ops):
            raise ConfigError(f"ops must be a tuple of module names, got {self.ops!r}; for example, write ('my_ops',)")


def _is_group(item: tuple[object, object]) -> bool:
    name, members = item
    if not isinstance(members, Sequence) or isinstance(members, str):
        return False
    return isinstance(name, str) and name != "" and all(isinstance(one, str) for one in members)


def _is_root(item: tuple[object, object]) -> bool:
    root, folder = item
    if not isinstance(root, str) or not isinstance(folder, str):
        return False
    return os.path.isabs(root) and not os.path.isabs(folder) and ".." not in folder.split("/")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _checked_log(path: object) -> str:
    """As text, so that what names the file need not ask."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str) or not text:
        raise ConfigError(
            f"log must be the path of a file, as in 'run-{{rank}}.jsonl', got {path!r}; leave it out for no log"
        )
    if os.path.isdir(text):
        raise ConfigError(f"log must be the path of a file, got the folder {text}; add a name, as in run.jsonl")
    return text
