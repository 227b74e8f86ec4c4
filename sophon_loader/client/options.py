"""What a user can set of a loader's dealings with its agent, and of an agent of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TypeGuard

from sophon_loader.errors import ConfigError


@dataclass(frozen=True)
class OffloadOptions:
    """Limits and time-outs; the defaults suit a training job on a local network.

    Args:
        window: most samples that one loader worker may have unanswered. It has up to 64, and more only where the way to
            the agent is so long that it takes more to keep it full.
        window_nbytes: most bytes that those may come to, by the mean of what has come; with what has come and still
            waits for its turn in the worker's memory.
        connect_timeout_s: how long the first answer of an agent may take before the loader gives up.
        heartbeat_s: silence after which the agent is asked whether it is alive.
        dead_after_s: silence after which it counts as gone; then files are read below the dataset's root if
            they are there, else the sample fails.
        resend_after_s: no sample, from an agent that says something, after which they are asked for again, then
            after 2, 4 and 8 times as long, and then it counts as gone; where the files are below the root, sooner.
        traffic_weight: share of the agent's cores that `auto` may use to save traffic where that costs no time, 0 to 1;
            0: nothing is offloaded that makes no epoch shorter.
        cost_per_gb: seconds of training that a gigabyte less on the wire is worth to `auto`: its price, by that of a
            second of the job. A link that is billed may then be spared at the cost of time.
        verify: share of the samples from the agent that are computed here, too, and compared bit for bit, 0 to 1; which
            ones depends on nothing but their random numbers. Above 0, the first 16 of a run come on top where the files
            are here. 0: none.
        reuse_batch_memory: whether workers make batches in shared memory that is used again and again. False: every
            batch goes to the main process as torch's DataLoader sends it, which takes more CPU time.
        key: what opens connections to an agent that has keys: the token that it made, or the path of the file with it.
            None: the environment variable `SOPHON_KEY`, else the file `~/.config/sophon/keys/HOST:PORT`, if there is
            one.

    Example:
        >>> OffloadOptions(window_nbytes=8 << 20, dead_after_s=30.0).heartbeat_s
        2.0

    Raises:
        ConfigError: a value that cannot work.
    """

    window: int = 512
    window_nbytes: int = 32 << 20
    connect_timeout_s: float = 5.0
    heartbeat_s: float = 2.0
    dead_after_s: float = 10.0
    resend_after_s: float = 10.0
    traffic_weight: float = 0.5
    cost_per_gb: float = 0.0
    verify: float = 0.001
    reuse_batch_memory: bool = True
    key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, what in (("window", "samples"), ("window_nbytes", "bytes")):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number of {what} from 1 on, got {value!r}")
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.endswith("_s") and not (_is_number(value) and 0 < value < math.inf):
                raise ConfigError(f"{one.name} must be a positive number of seconds, got {value!r}")
        for name in ("traffic_weight", "verify"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value <= 1):
                raise ConfigError(f"{name} must be a share from 0 to 1, got {value!r}")
        if not (_is_number(self.cost_per_gb) and 0 <= self.cost_per_gb < math.inf):
            raise ConfigError(f"cost_per_gb must be seconds from 0 on, got {self.cost_per_gb!r}")
        if not isinstance(self.reuse_batch_memory, bool):
            raise ConfigError(
                f"reuse_batch_memory must be True or False, got {self.reuse_batch_memory!r}; False has torch's "
                "DataLoader send the batches"
            )
        if self.key is not None and not isinstance(self.key, str):
            raise ConfigError(f"key must be a token or the path of its file, got a {type(self.key).__name__}")


@dataclass(frozen=True)
class LocalAgent:
    """An agent on this host that the loader starts, and ends with itself; `agent="local"` is one with the defaults.

    Args:
        workers: its worker processes; None for one per core.
        limit_mbit: paces its replies to this many Mbit/s, for demos; files then cross, too. None for no limit.
        ops: modules that it imports for their `register_op` calls.

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
            raise ConfigError(f"workers must be a number of processes from 1 on or None, got {self.workers!r}")
        limit = self.limit_mbit
        if limit is not None and not (_is_number(limit) and 0 < limit < math.inf):
            raise ConfigError(f"limit_mbit must be a positive number of Mbit/s or None, got {limit!r}")
        if not isinstance(self.ops, (tuple, list)) or not all(isinstance(name, str) for name in self.ops):
            raise ConfigError(f"ops must be a tuple of module names, got {self.ops!r}; write ('my_ops',), for example")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
