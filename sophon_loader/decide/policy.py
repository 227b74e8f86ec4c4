"""The contracts of policies.

To write one, put a class in a file of `policies/` and a line in `policies.POLICIES`. Or register it from your own
package (entry-point group `sophon_loader.policies`). `policies/common.py` has what most of them need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from sophon_loader.decide.facts import FILE, Choice, Facts
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.tariff import NO_TRAFFIC, Tariff, Traffic
from sophon_loader.errors import PlanError


@runtime_checkable
class Policy(Protocol):
    """Decides the choice of every sample. Pure: the same facts give the same plan, and nothing else happens.

    The loader calls `plan` in its main process, between two epochs: when there are facts for the first time, and when
    rates have moved or more samples are profiled.

    Example:
        >>> class CutAtTwo:
        ...     name = "cut-at-two"
        ...     needs_profile = False
        ...
        ...     def plan(self, facts: Facts) -> Plan:
        ...         choice = Choice(2, "pixels") if facts.max_cut >= 2 else FILE
        ...         return uniform_plan(self.name, facts.samples, choice, "asked to cut at 2")
        >>> loader = OffloadingDataLoader(dataset, policy=CutAtTwo())
    """

    @property
    def name(self) -> str:
        """The word that the user types."""

    @property
    def needs_profile(self) -> bool:
        """True if `plan` needs a table of costs; without one it then offloads nothing."""

    def plan(self, facts: Facts) -> Plan:
        """Choose for each sample.

        Raises:
            PlanError: the facts contradict the policy's own settings.
        """


@runtime_checkable
class StagedPolicy(Protocol):
    """A policy that needs profiles only once the first steps have shown that I/O limits."""

    stage_one_steps: int
    """Training steps of an epoch that show it. 0: samples are measured from the first one on, for any bottleneck."""


@runtime_checkable
class PricingPolicy(Protocol):
    """Decides at which prices agents choose for each sample. Pure, as `Policy` is, and in place of one.

    The loader asks every second, from what the last seconds have shown; without an agent it does not.

    Example:
        >>> class WireOnly:
        ...     name = "wire-only"
        ...
        ...     def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        ...         return Tariff((Part(1.0, Prices(wire=1.0, loader=0.0, agent=0.0)),), "asked to save bytes")
        >>> loader = OffloadingDataLoader(dataset, agent="tcp://storage:5555/pictures", policy=WireOnly())
    """

    @property
    def name(self) -> str:
        """The word that the user types."""

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        """Return the tariff for the next requests.

        Args:
            facts: of some recently requested samples, with a table.
            traffic: the allowed cost of saving traffic.
        """


@dataclass(frozen=True)
class Trial:
    """A measured window of training steps under one plan.

    Args:
        choice: choice of the offloaded samples; `FILE` for the local trial.
        share: share of the samples that was offloaded, in [0, 1].
        samples_s: samples/s that the training loop received, > 0.
        loader_cpu_s_per_sample: CPU seconds in the loader per sample (of all samples, offloaded or not), >= 0.

    Raises:
        PlanError: a value is out of its range.
    """

    choice: Choice
    share: float
    samples_s: float
    loader_cpu_s_per_sample: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise PlanError(f"share must be in [0, 1], got {self.share}; it is a share of the samples")
        if not 0 < self.samples_s < math.inf:
            raise PlanError(f"samples_s must be > 0 and finite, got {self.samples_s}; time a longer window")
        if not 0 <= self.loader_cpu_s_per_sample < math.inf:
            got = self.loader_cpu_s_per_sample
            raise PlanError(f"loader_cpu_s_per_sample must be >= 0 and finite, got {got}; measure it again")

    @classmethod
    def of(cls, plan: Plan, samples_s: float, loader_cpu_s_per_sample: float) -> Trial:
        """Make the trial of a plan.

        Args:
            plan: from `TryingPolicy.next_trial`; it offloads by one choice at most.
            samples_s: samples/s that the training loop received, > 0.
            loader_cpu_s_per_sample: CPU seconds in the loader per sample, >= 0.

        Raises:
            PlanError: the plan offloads by several choices, or a value is out of its range.
        """
        offloaded = {choice: count for choice, count in plan.counts().items() if choice != FILE}
        if len(offloaded) > 1:
            got = ", ".join(map(str, offloaded))
            raise PlanError(f"a trial's plan must offload by one choice, got {got}; use the one next_trial returned")
        choice, count = next(iter(offloaded.items()), (FILE, 0))
        return cls(choice, count / max(1, plan.samples), samples_s, loader_cpu_s_per_sample)


@runtime_checkable
class TryingPolicy(Protocol):
    """A policy that wants plans tried out and measured before it decides; the loader's main process calls it."""

    trial_steps: int
    """Training steps that the loader measures per trial."""

    def next_trial(self, trials: Sequence[Trial], facts: Facts) -> Plan | None:
        """Return the plan to try next; None once enough is known.

        Args:
            trials: results so far, oldest first.
            facts: as currently known.
        """

    def decide(self, trials: Sequence[Trial], facts: Facts) -> Plan:
        """Return the plan to keep.

        Args:
            trials: results, oldest first.
            facts: as currently known.
        """
