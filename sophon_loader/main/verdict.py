"""What limits, and what more would bring: of the one moment in which a tariff was worked out. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Facts, Rates
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.decide.tariff import Tariff
from sophon_loader.profiling.live import Conditions

DOUBLED = {
    "gpu": "gpu_samples_s",
    "wire": "wire_bytes_s",
    "loader-cpu": "loader_cores",
    "agent-cpu": "agent_cores",
}
"""What `would_bring` tells of, and the rate that is doubled for it."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What was known when a tariff was worked out. Frozen, so whichever thread asks hears of one moment alone.

    Args:
        policy: that has worked it out.
        facts: the samples of late. The agent's disk counts among the training steps there.
        rates: of GPU, wire and cores as they were.
        wire_seen: whether that of the wire was measured. What a guess would make of the wire is not told.
        disk_s: seconds for which the agent's disk is busy with these samples.
        predicted: their time under the tariff; None where the policy does not say.
        without: the same without offloading.

    Example:
        >>> Verdict.of(policy, facts, conditions, tariff, files_here=False).would_bring["wire"]
        1.78
    """

    policy: PricingPolicy
    facts: Facts
    rates: Rates
    wire_seen: bool
    disk_s: float
    predicted: EpochTime | None
    without: EpochTime | None

    @staticmethod
    def of(policy: PricingPolicy, facts: Facts, conditions: Conditions, tariff: Tariff, *, files_here: bool) -> Verdict:
        """The verdict of this moment.

        Args:
            policy: that has worked the tariff out.
            facts: what it was worked out from.
            conditions: what the resources gave.
            tariff: what requests go out at.
            files_here: files are read by the loader itself.
        """
        table = facts.table
        read = 0.0 if files_here or table is None else float(table.wire_bytes[:, 0].sum(dtype=np.float64))
        disk_s = read / conditions.disk_bytes_s
        rates, wire_seen = conditions.rates, conditions.wire_seen
        return Verdict(policy, facts, rates, wire_seen, disk_s, tariff.predicted, tariff.without)

    @property
    def seconds(self) -> float | None:
        """That the known samples take under the tariff; None where the policy does not say."""
        return None if self.predicted is None else max(self.predicted.seconds, self.disk_s)

    @property
    def throughput(self) -> dict[str, float]:
        """SOPHON's stage 1: samples/s of `gpu`, `cpu` and `io` by themselves without offloading, where they limit."""
        time, samples = self.without, self.facts.samples
        if time is None:
            return {}
        busy = {"gpu": samples / self.rates.gpu_samples_s, "cpu": time.loader_cpu_s}
        if self.wire_seen:
            busy["io"] = time.wire_s
        return {name: samples / seconds for name, seconds in busy.items() if seconds > 0}

    def limits(self, *, offloading: bool = True) -> dict[str, float]:
        """By resource the share of the time for which it is busy, the busiest first; empty where nothing is predicted.

        Args:
            offloading: by the tariff; else as if nothing was offloaded.
        """
        time = self.predicted if offloading else self.without
        if time is None:
            return {}
        time = replace(time, gpu_s=self.facts.samples / self.rates.gpu_samples_s)
        return shares_of(time, self.disk_s, wire_seen=self.wire_seen)

    @cached_property
    def would_bring(self) -> dict[str, float]:
        """Times as many images/s, by the model, with twice of each resource, each time under the best tariff for it."""
        if self.predicted is None:
            return {}
        now_s = self._least_s(self.rates, self.disk_s)
        found = {}
        for name, field in DOUBLED.items():
            doubled = replace(self.rates, **{field: 2 * getattr(self.rates, field)})
            found[name] = now_s / self._least_s(doubled, self.disk_s)
        found["agent-disk"] = now_s / self._least_s(self.rates, self.disk_s / 2)
        # Nothing is slower for having more: what is missing was given up for less traffic, within a policy's slack.
        return {name: max(1.0, times) for name, times in found.items()}

    def _least_s(self, rates: Rates, disk_s: float) -> float:
        predicted = self.policy.tariff(replace(self.facts, rates=rates)).predicted
        assert predicted is not None, "a policy predicts, or it does not"
        return max(predicted.seconds, disk_s)

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


def shares_of(time: EpochTime, disk_s: float = 0.0, *, wire_seen: bool = True) -> dict[str, float]:
    """For each resource the share of the time for which it is busy, the busiest first.

    Args:
        time: under the cost model.
        disk_s: seconds of the agent's disk.
        wire_seen: whether the time of the wire is more than a guess; else it is left out.
    """
    busy = {
        "gpu": time.gpu_s,
        "wire": time.wire_s,
        "loader-cpu": time.loader_cpu_s,
        "agent-cpu": time.agent_cpu_s,
        "agent-disk": disk_s,
    }
    if not wire_seen:
        del busy["wire"]
    longest = max(busy.values()) or 1.0
    return {name: seconds / longest for name, seconds in sorted(busy.items(), key=lambda item: -item[1])}
