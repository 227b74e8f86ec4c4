"""The arguments that torch's DataLoader does not have, checked before anything is started."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
from sophon_loader.decide.policies.fixed import AllOff, NoOff, ResizeOff
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.device.tail import device_of
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.errors import ConfigError, warn_user
from sophon_loader.host.scraping import needs_prometheus
from sophon_loader.routes.named import FOLDER, SCHEMES, parse_roster


@dataclass(frozen=True)
class Settings:
    """Checked settings of a loader.

    Args:
        agent: address of the agent, or of a folder or cluster that names agents (`routes.named`). A `LocalAgent` is
            started on this host. None: no agent.
        encodings: names of those that may be used on the wire.
        seed: of all random numbers; None to follow torch's.
        profile: the file in which profiles are kept, or None.
        tail: the device on which the last ops run, batch by batch; None to run all ops with the samples.
        device_prefetch: number of batches on their way to the accelerator, in addition to the one that is delivered.
    """

    agent: Address | LocalAgent | None
    policy: Policy | PricingPolicy
    encodings: tuple[str, ...]
    seed: int | None
    profile: Path | None
    tail: torch.device | None
    device_prefetch: int
    options: OffloadOptions
    agents: tuple[Address, ...] = ()
    """All agents, if there are several; `agent` is then the first."""

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
        """Check an OffloadingDataLoader's arguments, as the user gave them, and return the settings.

        Warns:
            OffloadWarning: an agent is given, and the C extension is not built here.

        Raises:
            ConfigError: an argument cannot work; the text names rule, value and remedy.
        """
        if options is not None and not isinstance(options, OffloadOptions):
            raise ConfigError(
                f"options must be an OffloadOptions, got {options!r}; for example, write OffloadOptions(window=64)"
            )
        options = options or OffloadOptions()
        if options.metrics_port is not None:
            needs_prometheus("metrics_port")
        if agent is not None and encodings == "auto" and not native.available:
            warn_user(f"JPEG files are sent whole, because roi-jpeg is not available: {native.reason}.")
        chosen = policy_named(policy)
        agents = _checked_agents(agent, options, chosen)
        return Settings(
            agents[0] if agents else None,
            chosen,
            _checked_encodings(encodings),
            _checked_seed(seed),
            _checked_profile(profile),
            device_of(tail),
            _checked_depth(device_prefetch),
            options,
            tuple(one for one in agents if isinstance(one, Address)) if len(agents) > 1 else (),
        )


def _checked_agents(agent: Any, options: OffloadOptions, policy: Any) -> tuple[Address | LocalAgent, ...]:
    if agent is None:
        return ()
    if isinstance(agent, LocalAgent) or agent == "local":
        return (LocalAgent() if agent == "local" else agent,)
    several = not isinstance(agent, str)
    if several and not (isinstance(agent, (list, tuple)) and all(isinstance(one, str) for one in agent)):
        raise ConfigError(
            "agent must be an address like 'tcp://fileserver:5555/imagenet', a list of such, 'local', a LocalAgent or "
            f"None, got {agent!r}; 'local' starts an agent on this host"
        )
    texts = list(agent) if several else [agent]
    if rosters := [one for one in texts if one.startswith(SCHEMES)]:
        if len(texts) > 1:
            raise ConfigError(
                f"a list of agents must have addresses alone, got {texts}; give {rosters[0]!r} by itself, since it "
                "names all agents that are found there"
            )
        what = "a folder" if texts[0].startswith(FOLDER) else "a Ray cluster"
        check_plans_for_several(policy, f"agents are named by {what} ({texts[0]})")
        return (parse_roster(texts[0]).with_key(options.key),)
    if not texts:
        raise ConfigError(
            f"agent must be one address or more, got {agent!r}; for no agent, write agent=None or leave it out"
        )
    if texts == ["local"]:
        return (LocalAgent(),)
    if "local" in texts:
        raise ConfigError(f"a list of agents must have addresses alone, got {texts}; give 'local' by itself")
    found = tuple(Address.parse(one).with_key(options.key) for one in texts)
    if len(found) > 1:
        check_several(found, policy)
    return found


def check_several(agents: Sequence[Address], policy: Any) -> None:
    """Check that a loader can have these agents with its policy.

    Raises:
        ConfigError: one is given twice, or the policy plans for one.
    """
    names = [str(one) for one in agents]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"each agent must be given once, got {twice[0]} {names.count(twice[0])} times; leave one out")
    check_plans_for_several(policy, "several agents are given")


def plans_for_several(policy: Any) -> bool:
    """Return True if a policy can have any number of agents."""
    return isinstance(policy, (PricingPolicy, NoOff, AllOff, ResizeOff))


def check_plans_for_several(policy: Any, where: str) -> None:
    """Check that a policy can have any number of agents.

    Args:
        policy: of the loader.
        where: condition under which this is needed, for the error.

    Raises:
        ConfigError: the policy plans for one agent.
    """
    if not plans_for_several(policy):
        raise ConfigError(
            f"policy must be 'auto', 'no-off', 'all-off' or 'resize-off' where {where}, got {policy.name!r}, which "
            "plans for one; give one agent or another policy"
        )


def _checked_encodings(encodings: Any) -> tuple[str, ...]:
    """Return the names in the order of the catalogue."""
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
