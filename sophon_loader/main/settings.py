"""The arguments that torch's DataLoader does not have, checked before anything is started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import index as as_int
from pathlib import Path
from typing import Any

import torch

from sophon_loader import native
from sophon_loader.client.address import Address
from sophon_loader.client.options import LocalAgent, OffloadOptions
from sophon_loader.decide.facts import PAPER_ENCODINGS
from sophon_loader.decide.policies import policy_named
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import ConfigError, warn_user
from sophon_loader.main.tail import device_of


@dataclass(frozen=True)
class Settings:
    """What a user has asked of a loader.

    Args:
        agent: where files are served; a `LocalAgent` is started on this host; None: no agent.
        encodings: names of those that may be used on the wire.
        seed: of all random numbers; None to follow torch's.
        profile: the file in which profiles are kept, or None.
        tail: the device on which the last ops run, batch by batch; None to run all ops with the samples.
        device_prefetch: batches that are on their way to the accelerator beside the one that is delivered.
    """

    agent: Address | LocalAgent | None
    policy: Policy | PricingPolicy
    encodings: tuple[str, ...]
    seed: int | None
    profile: Path | None
    tail: torch.device | None
    device_prefetch: int
    options: OffloadOptions

    @staticmethod
    def checked(
        agent: Any,
        policy: Any,
        encodings: Any,
        seed: Any,
        profile: Any,
        tail: Any,
        device_prefetch: Any,
        options: Any,
    ) -> Settings:
        """The settings that arguments of an OffloadingDataLoader mean, as the user gave them.

        Warns:
            OffloadWarning: an agent is given, and the C extension is not built here.

        Raises:
            ConfigError: one cannot work; the text names rule, value and remedy.
        """
        if options is not None and not isinstance(options, OffloadOptions):
            raise ConfigError(
                f"options must be an OffloadOptions, got {options!r}; for example, write OffloadOptions(window=64)"
            )
        options = options or OffloadOptions()
        if agent is not None and encodings == "auto" and not native.available:
            warn_user(f"JPEG files are sent whole, because roi-jpeg is not available: {native.reason}.")
        return Settings(
            _checked_agent(agent, options),
            policy_named(policy),
            _checked_encodings(encodings),
            _checked_seed(seed),
            _checked_profile(profile),
            device_of(tail),
            _checked_depth(device_prefetch),
            options,
        )


def _checked_agent(agent: Any, options: OffloadOptions) -> Address | LocalAgent | None:
    if agent is None or isinstance(agent, LocalAgent):
        return agent
    address = agent if isinstance(agent, str) else _only_one(agent)
    return LocalAgent() if address == "local" else Address.parse(address).with_key(options.key)


def _only_one(agents: Any) -> str:
    if not isinstance(agents, (list, tuple)) or not all(isinstance(one, str) for one in agents):
        raise ConfigError(
            "agent must be an address like 'tcp://fileserver:5555/imagenet', 'local', a LocalAgent or None, got "
            f"{agents!r}; 'local' starts an agent on this host"
        )
    if not agents:
        raise ConfigError(f"agent must be one address, got {agents!r}; for no agent, write agent=None or leave it out")
    if len(agents) != 1:
        raise ConfigError(
            f"agent must be one address, because several are not supported yet, got {len(agents)}: {list(agents)}; "
            "give one"
        )
    return str(agents[0])


def _checked_encodings(encodings: Any) -> tuple[str, ...]:
    """In the order of the catalogue."""
    known = encoding_names()
    rule = f"encodings must be 'auto', 'paper' or a list of names out of {known}, got {encodings!r}"
    if encodings == "auto":
        return known
    allowed = PAPER_ENCODINGS if encodings == "paper" else encodings
    if isinstance(allowed, str):
        raise ConfigError(f"{rule}; to allow a single one, write [{encodings!r}]")
    if not isinstance(allowed, (list, tuple, set, frozenset)) or not set(allowed) <= set(known):
        raise ConfigError(f"{rule}; leave it out to allow all")
    return tuple(name for name in known if name in allowed)


def _checked_seed(seed: Any) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ConfigError(f"seed must be an integer, got {seed!r}; leave it out to follow torch.manual_seed")
    return as_int(seed)


def _checked_depth(depth: Any) -> int:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
        raise ConfigError(f"device_prefetch must be a whole number of batches, got {depth!r}; 2 is enough, 0 is off")
    return depth


def _checked_profile(profile: Any) -> Path | None:
    if profile is None:
        return None
    if not isinstance(profile, (str, os.PathLike)) or not os.fspath(profile):
        raise ConfigError(f"profile must be the path of a file, got {profile!r}; leave it out to keep no profile")
    path = Path(os.fspath(profile))
    if path.is_dir():
        raise ConfigError(f"profile must be the path of a file, got the folder {path}; add a name, as in run.npz")
    return path
