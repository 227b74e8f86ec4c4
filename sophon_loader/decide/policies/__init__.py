"""The policies, by name.

Each has its own file and one line in `POLICIES`; `decide/policy.py` describes their contracts. Other packages register
theirs through the entry-point group `sophon_loader.policies`: name = the policy's name, value = its factory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Literal

from sophon_loader.decide.policies.auto import Auto
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policies.fixed import AllOff, NoOff, ResizeOff
from sophon_loader.decide.policies.sophon import Sophon
from sophon_loader.decide.policy import Policy, PricingPolicy
from sophon_loader.errors import PlanError

ENTRY_POINTS = "sophon_loader.policies"
"""Entry points of installed packages: the factory of a policy, under the policy's name."""

PolicyName = Literal["no-off", "all-off", "resize-off", "fastflow", "fastflow-every", "sophon", "auto"]
"""Names that editors complete and type checkers know: those of `POLICIES`."""
POLICIES: dict[str, Callable[[], Policy | PricingPolicy]] = {
    "no-off": NoOff,
    "all-off": AllOff,
    "resize-off": ResizeOff,
    "fastflow": FastFlow,
    "fastflow-every": lambda: FastFlow("every"),
    "sophon": Sophon,
    "auto": Auto,
}


def policy_named(name_or_policy: str | Policy | PricingPolicy) -> Policy | PricingPolicy:
    """Return the policy of that name, or the policy itself.

    Raises:
        PlanError: no policy has that name, or the object is not a policy.
    """
    if not isinstance(name_or_policy, str):
        return _checked(name_or_policy, type(name_or_policy).__name__)
    build = POLICIES.get(name_or_policy)
    if build is not None:
        return build()
    outside = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name_or_policy in outside:
        return _checked(outside[name_or_policy].load()(), f"entry point {name_or_policy!r}")
    known = ", ".join([*POLICIES, *sorted(set(outside) - set(POLICIES))])
    raise PlanError(f"policy must be one of {known}, got {name_or_policy!r}; or pass a Policy object")


def _checked(candidate: object, what: str) -> Policy | PricingPolicy:
    if isinstance(candidate, type) or not isinstance(candidate, Policy | PricingPolicy):
        raise PlanError(
            f"policy must have name, needs_profile and plan(facts), got {what}; see sophon_loader.decide.policy.Policy"
        )
    return candidate
