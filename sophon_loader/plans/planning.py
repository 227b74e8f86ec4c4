"""The plan that is followed now, and its prediction.

Pure: rates and tables in, plans out; no clock, socket or process. The caller, which drives the epochs, passes what is
known when one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sophon_loader.decide.cost import EpochTime, moved
from sophon_loader.decide.facts import FILE, Facts, Rates
from sophon_loader.decide.plan import Plan, uniform_plan
from sophon_loader.decide.policy import Policy, TryingPolicy
from sophon_loader.plans.trial_windows import KeptTrials, TrialRunner


@dataclass(frozen=True)
class Known:
    """Inputs of a plan.

    Args:
        coverage: share of the samples that have been profiled, in [0, 1].
        rates: of the resources, in the CPU seconds that the cost model counts.
        facts: returns the policy's facts. Called only when there is something to plan, because they hold a row per
            sample and choice.
    """

    coverage: float
    rates: Rates
    facts: Callable[[], Facts]


@dataclass(frozen=True)
class Followed:
    """The plan that is followed, and its prediction for a whole epoch at current rates.

    Args:
        predicted: None if the plan has no prediction.
    """

    plan: Plan
    predicted: EpochTime | None


class Planner:
    """Holds the plan of one run: makes it, and keeps it while its rates hold.

    Args:
        policy: decides.
        samples: number of samples in the dataset.
        kept: trials of an earlier run, for a policy that tries plans out.
        keep: called with this run's trials when they are done.

    Example:
        planner = Planner(policy, len(dataset))
        plan = planner.follow(Known(coverage, rates, facts), lag=0).plan
    """

    def __init__(
        self,
        policy: Policy,
        samples: int,
        kept: KeptTrials | None = None,
        keep: Callable[[KeptTrials], None] = lambda _: None,
    ) -> None:
        self._policy = policy
        self._samples = samples
        self._kept = kept
        self._keep = keep
        self._trials: TrialRunner | None = None
        self._known: Known | None = None
        self._made_from: tuple[float, Rates] | None = None  # coverage and rates of the policy's newest plan
        self.current: Followed | None = None
        """The current plan; None before the first epoch."""

    @property
    def needs_profile(self) -> bool:
        """True if the policy plans by the costs of choices."""
        return self._policy.needs_profile

    @property
    def by_cost(self) -> bool:
        """True if the policy can use costs of the choices, if only to predict."""
        return self.needs_profile or isinstance(self._policy, TryingPolicy)

    def follow(self, known: Known, lag: int, *, measuring: bool = False) -> Followed:
        """Return the plan for an epoch, or another pass over the data, that begins.

        Args:
            known: at this moment.
            lag: number of batches that workers ask for ahead of the one being delivered.
            measuring: offload nothing, and plan again the next time.
        """
        self._known = known
        if measuring:
            self._made_from = None
            return self._set(self._without("this epoch measures, without offloading"))
        if isinstance(self._policy, TryingPolicy):
            # Decided by trying; the table only serves to predict.
            # Behind what was asked for before come as many that one side had all that time to work ahead on.
            warm = self._policy.trial_steps // 2
            self._trials = self._trials or TrialRunner(self._policy, self._facts, 2 * lag, self._kept, warm)
            return self._set(self._trials.plan)
        return self._planned(known)

    def _planned(self, known: Known) -> Followed:
        before, now = self._made_from, (known.coverage, known.rates)
        holds = before is not None and before[0] == now[0] and not moved(before[1], now[1])
        if before is not None and holds and self.current is not None:
            terms = self.current.plan.predicted
            self.current = Followed(self.current.plan, terms and terms.at(before[1], now[1]))
            return self.current
        facts = known.facts()
        if facts.table is None and self._policy.needs_profile:
            return self._set(self._without("this epoch measures, without offloading"))
        self._made_from = now
        return self._set(self._policy.plan(facts))

    def delivered(self, seconds: float, samples: int, loader_cpu_s: float, loaded: int) -> Followed | None:
        """Add a batch; returns the plan from now on, if it changes in mid-epoch.

        Args:
            seconds: since the batch before.
            samples: number of samples in the batch.
            loader_cpu_s: CPU seconds of the workers since then.
            loaded: number of samples that they finished in these.
        """
        if self._trials is None or self._trials.done:
            return None
        plan = self._trials.delivered(seconds, samples, loader_cpu_s, loaded)
        if plan is not None and self._trials.found is not None:
            self._keep(self._trials.found)
        return None if plan is None else self._set(plan)

    @property
    def trying(self) -> bool:
        """True if the policy still tries plans out, and needs to see every batch."""
        return self._trials is not None and not self._trials.done

    def _facts(self) -> Facts:
        assert self._known is not None, "trials begin when something is followed"
        return self._known.facts()

    def _without(self, reason: str) -> Plan:
        return uniform_plan(self._policy.name, self._samples, FILE, reason)

    def _set(self, plan: Plan) -> Followed:
        self.current = Followed(plan, plan.predicted)
        return self.current
