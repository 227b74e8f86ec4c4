"""What limits, and what more would bring: of the one moment in which a tariff was worked out. Pure."""

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
"""What `would_bring` tells of, and the rate that is doubled for it."""
LEAST_SPEED = 0.5
"""The least share of the cores that agents promise that work there is taken to get. Else agents that take each other's
cores would call for more and more of them."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was known when a tariff was worked out. Frozen, so whichever thread asks hears of one moment alone.

    Args:
        policy: that has worked it out.
        facts: the samples of late, and what the resources gave; without a table while no choice has been weighed.
        wire_seen: whether the rate of the wire was measured. What a guess would make of the wire is not told.
        tariff: what requests go out at.
        agent_speed: share of the cores that agents promise that work there gets.
        files_from_agents: whether files can be had from agents alone.

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
        """That the known samples take under the tariff; None where the policy does not say."""
        predicted = self.tariff.predicted
        return None if predicted is None else predicted.seconds

    @property
    def throughput(self) -> dict[str, float]:
        """SOPHON's stage 1: samples/s of `gpu`, `cpu` and `io` by themselves without offloading, where they limit."""
        time, samples = self.tariff.without, self.facts.samples
        if time is None:
            return {}
        busy = {"gpu": time.gpu_s, "cpu": time.loader_cpu_s}
        if self.wire_seen:
            busy["io"] = time.wire_s
        return {name: samples / seconds for name, seconds in busy.items() if seconds > 0}

    def limits(self, *, offloading: bool = True) -> dict[str, float]:
        """By resource the share of the time for which it is busy, the busiest first; empty where nothing is predicted.

        Args:
            offloading: by the tariff; else as if nothing was offloaded.
        """
        time = self.tariff.predicted if offloading else self.tariff.without
        return {} if time is None else shares_of(time, wire_seen=self.wire_seen)

    @cached_property
    def would_bring(self) -> dict[str, float]:
        """Times as many images/s, by the model, with twice of each resource, each time under the best tariff for it;
        empty while no choice has been weighed."""
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
        """Cores of agents that could be used, as agents promise them; None while no choice has been weighed."""
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
        """What each choice takes, a mean over the samples that have it."""
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
    """For each resource the share of the time for which it is busy, the busiest first.

    Args:
        time: under the cost model.
        wire_seen: whether the time of the wire is more than a guess; else it is left out.
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
