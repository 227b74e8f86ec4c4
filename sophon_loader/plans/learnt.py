"""Knowledge of a run from its epochs: a value, from which each epoch makes the next one. No clock, no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Rates
from sophon_loader.plans.healing import Healing, WireDoubt
from sophon_loader.plans.probes import UpkeepCosts
from sophon_loader.plans.rates import EpochMeasure

MIN_COUNTED = 16
"""Minimum samples for a mean, or a comparison with the plan. With fewer, one large sample dominates."""
MIN_CORES = 1e-3
"""Number of cores assumed for an agent without any, since a rate must be above 0: too few to be worth using."""
MAX_LOAD = 4.0
"""Largest believed ratio of used to planned CPU seconds, and of planned to used. Beyond it is a disturbance, not the
model's error."""
MODEL_ERROR = 1.25
"""Largest such ratio that may be the model's fault. It was wrong by up to 24 % (docs/results.md, "Fewer agent
cores")."""


@dataclass(frozen=True)
class Bounds:
    """Facts that epochs do not change.

    Args:
        loader_cores: cores that the loader's processes may use, > 0.
        agent_cores: cores that the agent offers, >= 0; None without an agent.
        samples: number of samples in the dataset, and in a planned epoch.
    """

    loader_cores: float
    agent_cores: float | None
    samples: int


@dataclass(frozen=True)
class Learnt:
    """Knowledge about the resources.

    Example:
        >>> learnt = Learnt.nothing(Bounds(loader_cores=2.0, agent_cores=4.0, samples=1000))
        >>> learnt = learnt.after(epoch, plan.predicted, probed_upkeep_s)
        >>> facts = Facts(..., rates=learnt.planning_rates, ...)

    Args:
        bounds: facts that epochs do not change.
        rates: as epochs have shown them.
        upkeep_s: the agent's, as epochs have shown it.
        overhead_s: loader CPU seconds per sample apart from its ops.
        loader_load, agent_load: used CPU seconds per planned one, 1/4 to 4; None before an epoch followed a plan.
        healing: permissions of rates to rise without proof.
        wire_doubt: doubt about the wire's rate, which may be faster.
    """

    bounds: Bounds
    rates: Rates
    upkeep_s: UpkeepCosts = field(default_factory=UpkeepCosts)
    overhead_s: float = 0.0
    loader_load: float | None = None
    agent_load: float | None = None
    healing: Healing = field(default_factory=Healing)
    wire_doubt: WireDoubt = field(default_factory=WireDoubt)

    @staticmethod
    def nothing(bounds: Bounds) -> Learnt:
        """Return it before any measurement: all cores there are, and no other limit."""
        agent_cores = math.inf if bounds.agent_cores is None else max(bounds.agent_cores, MIN_CORES)
        return Learnt(bounds, Rates(math.inf, math.inf, bounds.loader_cores, agent_cores))

    @property
    def planning_rates(self) -> Rates:
        """The rates in the CPU seconds that the cost model counts, which may be shorter or longer than real ones."""
        loader_cores = self.rates.loader_cores / (self.loader_load or 1.0)
        agent_cores = self.rates.agent_cores / (self.agent_load or 1.0)
        return replace(self.rates, loader_cores=loader_cores, agent_cores=agent_cores)

    @property
    def knows_wire(self) -> bool:
        """True if the wire's rate is known, and not only a lower bound by an epoch's use."""
        return math.isfinite(self.rates.wire_bytes_s) and not self.wire_doubt.burst_due

    def known_upkeep_s(self, probed_s: UpkeepCosts) -> UpkeepCosts:
        """Return the agent's upkeep as epochs have shown it, or else as dry runs did."""
        return self.upkeep_s.or_else(probed_s)

    def resized(self, loader_cores: float) -> Learnt:
        """Return it with another number of cores for the loader's processes, which they are assumed to have."""
        bounds, rates = replace(self.bounds, loader_cores=loader_cores), replace(self.rates, loader_cores=loader_cores)
        return replace(self, bounds=bounds, rates=rates)

    def after_burst(self, found_bytes_s: float | None) -> Learnt:
        """Return it after a burst of files.

        Args:
            found_bytes_s: minimum rate of the wire; None if nothing arrived.
        """
        rates = self.rates
        if found_bytes_s is not None:
            known = rates.wire_bytes_s if math.isfinite(rates.wire_bytes_s) else 0.0
            rates = replace(rates, wire_bytes_s=max(found_bytes_s, known))
        return replace(self, rates=rates, wire_doubt=self.wire_doubt.after_burst())

    def after(
        self, epoch: EpochMeasure, planned: EpochTime | None, probed_upkeep_s: UpkeepCosts, ops_s: float | None = None
    ) -> Learnt:
        """Return it after an epoch.

        Args:
            epoch: its measurements.
            planned: the plan's estimate for an epoch over all samples at `planning_rates`; None if none was followed
                from the first sample to the last.
            probed_upkeep_s: the agent's upkeep by dry runs.
            ops_s: loader CPU seconds of all ops of a sample, a mean, if it was measured in this epoch.
        """
        learnt = replace(self, upkeep_s=epoch.upkeep_s.or_else(self.upkeep_s))
        if planned is not None and epoch.samples >= MIN_COUNTED:
            before_s, now_s = self.known_upkeep_s(probed_upkeep_s), learnt.known_upkeep_s(probed_upkeep_s)
            more_s = UpkeepCosts(now_s.file_s - before_s.file_s, now_s.op_s - before_s.op_s)
            learnt = learnt._with_loads(epoch, planned, more_s)
        if ops_s is not None and epoch.samples:
            learnt = replace(learnt, overhead_s=max(0.0, epoch.loader_cpu_s / epoch.samples - ops_s))
        rates, healing = self.healing.after(
            self.rates,
            epoch,
            self.bounds.loader_cores,
            self.bounds.agent_cores or 0.0,
            planned=planned is not None,
        )
        wire_doubt = self.wire_doubt.after(self.rates, rates, epoch)
        return replace(learnt, rates=rates, healing=healing, wire_doubt=wire_doubt)

    def _with_loads(self, epoch: EpochMeasure, planned: EpochTime, more_upkeep_s: UpkeepCosts) -> Learnt:
        """Return it with the ratio of an epoch's CPU seconds to the planned ones.

        Args:
            epoch: its measurements.
            planned: the plan's estimate.
            more_upkeep_s: upkeep known now, less the plan's.
        """
        rates, share = self.planning_rates, epoch.samples / max(1, self.bounds.samples)
        loader_s = planned.loader_cpu_s * rates.loader_cores * share
        learnt = replace(self, loader_load=_load(self.loader_load, epoch.loader_cpu_s, loader_s))
        files = epoch.samples - epoch.offloaded
        if epoch.agent_cpu_s > 2 * epoch.upkeep_s.seconds(files, epoch.offloaded):
            more_s = more_upkeep_s.seconds(files, epoch.offloaded)
            agent_s = planned.agent_cpu_s * rates.agent_cores * share + more_s
            return replace(learnt, agent_load=_load(self.agent_load, epoch.agent_cpu_s, agent_s))
        # Too little of it was ops and encodings to say something about them. A plan that avoids the agent because of a
        # load would never show that it was only a disturbance, so what is beyond the model's error is forgotten.
        if self.agent_load is not None and self.agent_load > MODEL_ERROR:
            return replace(learnt, agent_load=math.sqrt(self.agent_load))
        return learnt


def _load(known: float | None, used_s: float, planned_s: float) -> float | None:
    """Return used CPU seconds per planned one, averaged with the known ratio. Far fewer than known are believed at
    once, since a disturbance can only make work take more of them."""
    if not (used_s > 0 and 0 < planned_s < math.inf):
        return known
    load = min(max(used_s / planned_s, 1 / MAX_LOAD), MAX_LOAD)
    if known is None or load * MODEL_ERROR < known:
        return load
    return math.sqrt(load * known)
