"""Prices for the agent, around a policy's result: before anything is known, inputs, and units.

Pure: rates, counts and tables in; tariffs and facts out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sophon_loader.auto.conditions import Conditions
from sophon_loader.auto.corrections import AGENT_S_PER_BYTE, LOADER_S_PER_BYTE, CostCorrections
from sophon_loader.decide.facts import FILE, OFFLOADS_FROM_CORES, ChoiceTable, Facts, Rates
from sophon_loader.decide.tariff import FILES, Part, Prices, Tariff
from sophon_loader.measures.counters import Totals

ENOUGH = 0.01
"""Minimum share of samples offloaded, so that the costs of offloading stay known."""
NO_CPU = "the agent has next to no CPU"


@dataclass(frozen=True)
class CachedShare:
    """Share of the samples that are in the cache on the loader's host, by the workers' recent counts.

    Args:
        found: number of samples whose files are there.
        samples: number of samples counted.

    Example:
        >>> CachedShare().after(window).share
        0.25
    """

    found: float = 0.0
    samples: float = 0.0

    @property
    def share(self) -> float:
        """Share in [0, 1]; 0 before the first sample."""
        return min(1.0, self.found / self.samples) if self.samples else 0.0

    def after(self, window: Totals) -> CachedShare:
        """Return it after a window, which weighs twice as much as the one before."""
        return CachedShare(self.found / 2 + window.in_cache, self.samples / 2 + window.samples)

    def asks(self, tariff: Tariff) -> bool:
        """Return True if a tariff offloads enough samples, so that the costs of offloading stay known."""
        priced = [(part.share, part.prices) for part in tariff.parts if part.prices is not None]
        share = sum(share * (1.0 if not one.kept_here else 1 - self.share) for share, one in priced)
        return share >= ENOUGH


def of_files(passed: Totals) -> ChoiceTable | None:
    """Return the mean cost of a file that crosses, from samples that were not offloaded; None if one was.

    Args:
        passed: counts of these samples.
    """
    if not passed.samples or passed.offloaded:
        return None
    sent = max(1, passed.samples - passed.cached)
    means = passed.wire_bytes / sent, passed.agent_cpu_s / sent, passed.loader_cpu_s / passed.samples
    wire, agent, loader = (np.array([[mean]], np.float32) for mean in means)
    return ChoiceTable((FILE,), wire, agent, loader)


def facts_of(table: ChoiceTable, conditions: Conditions, cached: float = 0.0, admitted: float = 0.0) -> Facts:
    """Return the facts for a tariff.

    Args:
        table: of the recent samples.
        conditions: current rates of the resources.
        cached: share of the samples that are in the cache on the loader's host; the agent reads no files for these.
        admitted: share of them that the cache is to hold.
    """
    rates = rates_of(conditions, (1 - cached) * float(table.wire_bytes[:, 0].mean(dtype=np.float64)))
    reach = max(choice.cut for choice in table.choices)
    return Facts(table.samples, rates, table, reach, None, 1.0, cached=cached, admitted=admitted)


def rates_of(conditions: Conditions, file_nbytes: float) -> Rates:
    """Return the rates with that of the agent's disk; a loader that reads files on its own host does not wait for it.

    Args:
        conditions: current rates of the resources.
        file_nbytes: mean bytes of a file.
    """
    disk_samples_s = math.inf if conditions.files_here or not file_nbytes else conditions.disk_bytes_s / file_nbytes
    return replace(conditions.rates, disk_samples_s=disk_samples_s)


def at_first(conditions: Conditions) -> Tariff:
    """Return the tariff before anything is known: a second of wire, of loader and of agent costs the same.

    Args:
        conditions: current rates of the resources.
    """
    if conditions.files_here:
        return Tariff((FILES,), "nothing has been measured yet, and files are read on this host")
    if conditions.rates.agent_cores < OFFLOADS_FROM_CORES:
        return Tariff((FILES,), f"nothing has been measured yet, and {NO_CPU}")
    reason = (
        "nothing has been measured yet: each sample is sent in the way that takes the least time of network and CPUs "
        "together"
    )
    return Tariff((Part(1.0, equally_scarce(conditions.rates)),), reason)


def equally_scarce(rates: Rates) -> Prices:
    """Return prices at which a second of each resource costs the same.

    Args:
        rates: of the wire and of the cores at either end.
    """
    return Prices(wire=1 / rates.wire_bytes_s, loader=1 / rates.loader_cores, agent=1 / rates.agent_cores)


def with_tried(tariff: Tariff, rates: Rates, share: float) -> Tariff:
    """Return a tariff that also offloads some samples as trials, so that the costs of offloading stay known.

    Args:
        tariff: one that offloads few samples.
        rates: of the resources.
        share: of the samples to be offloaded, in [0, 1).
    """
    if not share:
        return tariff
    tried = replace(equally_scarce(rates), kept_here=False)
    parts = (replace(part, share=part.share * (1 - share)) for part in tariff.parts)
    return Tariff((*parts, Part(share, tried)), tariff.reason)


def in_units_of_the_agent(tariff: Tariff, beside: CostCorrections, per_worker: float) -> Tariff:
    """Return the tariff at prices of at most 1, in the agent's units.

    The price of a byte includes its CPU seconds at either end, and prices of CPU seconds are for the agent's estimates.

    Args:
        tariff: in seconds of the resources.
        beside: corrections of the agent's estimates.
        per_worker: minimum cores for each of the agent's workers.
    """
    parts = []
    for part in tariff.parts:
        prices = part.prices
        if prices is not None:
            wire = prices.wire + prices.loader * LOADER_S_PER_BYTE + prices.agent * AGENT_S_PER_BYTE
            rest, work = prices.loader * beside.loader_per_rest, prices.agent * beside.agent_per_work
            most = max(wire, rest, work) or 1.0
            prices = replace(prices, wire=wire / most, loader=rest / most, agent=work / most, per_worker=per_worker)
        parts.append(Part(part.share, prices))
    return Tariff(tuple(parts), tariff.reason)
