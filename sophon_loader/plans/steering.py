"""Has the workers of a run follow plans for each sample, as epochs begin and go on."""

from __future__ import annotations

import logging
from dataclasses import replace

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.policy import Policy, TryingPolicy
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.epoch.epoch import Epoch
from sophon_loader.fleet.agreement import Agreement
from sophon_loader.logs import log_line
from sophon_loader.measures.counters import Totals
from sophon_loader.plans.gathering import Gathering
from sophon_loader.plans.planning import Followed, Known, Planner
from sophon_loader.plans.profiler import Profiler
from sophon_loader.workers.shared_plan import SharedPlan

MAX_DEGRADED_SHARE = 0.05
"""Share of samples that did not come as planned, above which an epoch does not correct the plan."""
log = logging.getLogger(__name__)


class Steering:
    """Steers one run under a policy that plans for each sample, in the main process.

    Args:
        policy: makes the plans.
        profiler: of the run; has their inputs.
        samples: number of samples in the dataset.

    Attributes:
        planner: holds the plan.
        shared: the plan in memory that workers read.
        gathering: exchange of measurements between ranks; None for a single process.
    """

    def __init__(self, policy: Policy, profiler: Profiler, samples: int) -> None:
        self._policy = policy
        self._profiler = profiler
        self._samples = samples
        self.planner = self._new_planner()
        self.shared = SharedPlan(samples, encoding_names())
        self.gathering: Gathering | None = None

    def begin_anew(self) -> None:
        """Plan again for an agent that has answered late: earlier plans were made without one."""
        self.planner = self._new_planner()

    def _new_planner(self) -> Planner:
        kept = self._profiler.reuse_trials() if isinstance(self._policy, TryingPolicy) else None
        return Planner(self._policy, self._samples, kept, self._profiler.keep_trials)

    def begin(self, epoch: Epoch, agreement: Agreement) -> None:
        """Plan an epoch, or another pass of one, that begins.

        Args:
            epoch: that begins.
            agreement: with the agent.
        """
        profiler, planner = self._profiler, self.planner
        if self.gathering is not None and not epoch.measuring and self.gathering.take():
            profiler.grown()
        if profiler.samples.recording and (epoch.measuring or planner.by_cost):
            profiler.start_probing()
        known = Known(
            profiler.samples.coverage,
            profiler.planning_rates,
            lambda: profiler.facts(profiler.table(epoch.number)),
        )
        before = planner.current
        self._tell(epoch, agreement, before, planner.follow(known, epoch.lag, measuring=epoch.measuring))

    def delivered(self, epoch: Epoch, agreement: Agreement, seconds: float, samples: int) -> None:
        """Add a batch while plans are tried out.

        Args:
            epoch: of the batch.
            agreement: with the agent.
            seconds: since the batch before.
            samples: number of samples in the batch.
        """
        since = epoch.counted()
        before = self.planner.current
        now = self.planner.delivered(seconds, samples, since.loader_cpu_s, since.samples)
        if now is not None:
            epoch.replanned = True
            self._tell(epoch, agreement, before, now)

    def turned_over(self, epoch: Epoch, agreement: Agreement) -> None:
        """Go on to the next pass of an epoch."""
        before = self.planner.current
        self.begin(epoch, agreement)
        now = self.planner.current
        # Some of what comes next was asked for by the old plan.
        epoch.replanned = before is None or now is None or now.plan is not before.plan

    def predicted(self, epoch: Epoch, totals: Totals, *, whole: bool) -> EpochTime | None:
        """Return the prediction for a pass that has ended; None if the pass is no measure of the plan.

        Args:
            epoch: of the pass.
            totals: of the pass.
            whole: True if it delivered as many samples as the dataset has.
        """
        odd = totals.fallbacks + totals.degraded > MAX_DEGRADED_SHARE * totals.samples
        followed = self.planner.current
        return followed.predicted if whole and not odd and not epoch.replanned and followed else None

    def _tell(self, epoch: Epoch, agreement: Agreement, before: Followed | None, now: Followed) -> None:
        """Give the workers and the report the current plan."""
        if before is None or now.plan is not before.plan:
            self.shared.set(now.plan, agreement.encodings)
            log.info(log_line("plan followed", epoch=epoch.number, policy=now.plan.policy, reason=now.plan.reason))
        predicted_s = now.predicted.seconds * epoch.share if now.predicted else None
        epoch.account.findings = replace(
            epoch.account.findings, plan_reason=now.plan.reason, predicted_seconds=predicted_s
        )
