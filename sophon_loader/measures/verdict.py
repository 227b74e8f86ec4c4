"""The limiting resources, and the gain from more of each, at the moment a tariff was computed. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from sophon_loader.decide.agent_cores import wanted_agent_cores
from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Facts, Rates
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.decide.tariff import Tariff
from sophon_loader.wire.wanted_cores import MAX_CORES

DOUBLED = {
    "gpu": "gpu_samples_s",
    "wire": "wire_bytes_s",
    "loader-cpu": "loader_cores",
    "agent-cpu": "agent_cores",
    "agent-disk": "disk_samples_s",
}
"""Resources of `would_bring`, and the rate that is doubled for each."""
LEAST_SPEED = 0.5
"""Minimum share of the promised cores that work at agents is assumed to get. Without it, agents that compete for the
same cores would ask for more and more of them."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """The facts behind a tariff. Frozen, so every thread that reads it sees a single moment.

    Args:
        policy: the policy that has computed the tariff.
        facts: recent samples, and the measured rates of the resources; without a table before any choice was weighed.
        wire_seen: True if the rate of the wire was measured. Conclusions from a guessed rate are not reported.
        tariff: the prices that requests carry.
        agent_speed: share of the promised cores that work at agents gets.
        files_from_agents: True if only agents can supply files.

    Example:
        >>> Verdict(policy, facts, True, tariff).would_bring["wire"]
        1.78
    """

    policy: PricingPolicy
    facts: Facts
    wire_seen: bool
    tariff: Tariff
    agent_speed: float = 1.0
    files_from_agents: bool = False

    @property
    def seconds(self) -> float | None:
        """Predicted seconds for the known samples under the tariff; None if the policy does not predict."""
        predicted = self.tariff.predicted
        return None if predicted is None else predicted.seconds

    @property
    def throughput(self) -> dict[str, float]:
        """SOPHON's stage 1: samples/s of `gpu`, `cpu` and `io`, each alone and without offloading; only those that take
        time."""
        time, samples = self.tariff.without, self.facts.samples
        if time is None:
            return {}
        busy = {"gpu": time.gpu_s, "cpu": time.loader_cpu_s}
        if self.wire_seen:
            busy["io"] = time.wire_s
        return {name: samples / seconds for name, seconds in busy.items() if seconds > 0}

    def limits(self, *, offloading: bool = True) -> dict[str, float]:
        """Return each resource's share of busy time, the busiest first; empty without a prediction.

        Args:
            offloading: True under the tariff; False as if nothing was offloaded.
        """
        time = self.tariff.predicted if offloading else self.tariff.without
        return {} if time is None else shares_of(time, wire_seen=self.wire_seen)

    @cached_property
    def would_bring(self) -> dict[str, float]:
        """Speed-up in images/s by the model with twice of each resource, under the best tariff for it; empty before any
        choice was weighed."""
        if self.seconds is None or self.facts.table is None:
            return {}
        rates = self.facts.rates
        now_s = self._least_s(rates)
        found = {}
        for name, field in DOUBLED.items():
            found[name] = now_s / self._least_s(replace(rates, **{field: 2 * getattr(rates, field)}))
        if 0 < (held := self.facts.admitted) < 1:  # of a cache that has been filled, as one twice as large would be
            found["cache"] = self._least_s(rates, held) / self._least_s(rates, min(1.0, 2 * held))
        # Nothing is slower for having more: what is missing was given up for less traffic, within a policy's slack.
        return {name: max(1.0, times) for name, times in found.items()}

    @cached_property
    def wanted_cores(self) -> float | None:
        """Agent cores that the loader could use, in the unit that agents promise; None before any choice was
        weighed."""
        # A policy that does not predict goes by something else than the programme that this is worked out from.
        if self.seconds is None or self.facts.table is None:
            return None
        found = wanted_agent_cores(self.facts, files_from_agents=self.files_from_agents)
        return min(found / max(self.agent_speed, LEAST_SPEED), MAX_CORES)

    def _least_s(self, rates: Rates, cached: float | None = None) -> float:
        cached = self.facts.cached if cached is None else cached
        predicted = self.policy.tariff(replace(self.facts, rates=rates, cached=cached)).predicted
        assert predicted is not None, "a policy predicts, or it does not"
        return predicted.seconds

    def weighed(self) -> dict[str, dict[str, float]]:
        """Return each choice's mean costs over the samples that have it."""
        table = self.facts.table
        if table is None:
            return {}
        found = {}
        for column, choice in enumerate(table.choices):
            rows = table.has(column)
            costs = {"wire_bytes": table.wire_bytes, "agent_s": table.agent_s, "loader_s": table.loader_s}
            found[str(choice)] = {name: float(values[rows, column].mean()) for name, values in costs.items()}
        return found


def shares_of(time: EpochTime, *, wire_seen: bool = True) -> dict[str, float]:
    """Return each resource's share of busy time, the busiest first.

    Args:
        time: under the cost model.
        wire_seen: True if the wire's rate was measured; otherwise the wire is left out.
    """
    busy = {
        "gpu": time.gpu_s,
        "wire": time.wire_s,
        "loader-cpu": time.loader_cpu_s,
        "agent-cpu": time.agent_cpu_s,
        "agent-disk": time.disk_s,
    }
    if not wire_seen:
        del busy["wire"]
    longest = max(busy.values()) or 1.0
    return {name: seconds / longest for name, seconds in sorted(busy.items(), key=lambda item: -item[1])}
