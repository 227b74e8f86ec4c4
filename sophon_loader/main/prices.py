"""Prices for the agent, around what a policy works out: before anything is known, from what, and in which units.

Pure: rates, counts and tables in; tariffs and facts out.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from sophon_loader.decide.facts import FILE, OFFLOADS_FROM_CORES, ChoiceTable, Facts, Rates
from sophon_loader.decide.tariff import FILES, Part, Prices, Tariff
from sophon_loader.profiling.live import Conditions
from sophon_loader.workers.beside import AGENT_S_PER_BYTE, LOADER_S_PER_BYTE, Beside
from sophon_loader.workers.counters import Totals

NO_CPU = "the agent has next to no CPU"


def of_files(passed: Totals) -> ChoiceTable | None:
    """What a file takes, in the mean over samples of which none was offloaded; None if one was.

    Args:
        passed: what has been counted of them.
    """
    if not passed.samples or passed.offloaded:
        return None
    sums = passed.wire_bytes, passed.agent_cpu_s, passed.loader_cpu_s
    wire, agent, loader = (np.array([[sum_ / passed.samples]], np.float32) for sum_ in sums)
    return ChoiceTable((FILE,), wire, agent, loader)


def facts_of(table: ChoiceTable, conditions: Conditions) -> Facts:
    """What a tariff is worked out from.

    Args:
        table: of the recent samples.
        conditions: what the resources give.
    """
    rates = rates_of(conditions, float(table.wire_bytes[:, 0].mean(dtype=np.float64)))
    return Facts(table.samples, rates, table, max(choice.cut for choice in table.choices), None, 1.0)


def rates_of(conditions: Conditions, file_nbytes: float) -> Rates:
    """With that of the agent's disk, for which no loader waits whose files are read on its own host.

    Args:
        conditions: what the resources give.
        file_nbytes: mean bytes of a file.
    """
    disk_samples_s = math.inf if conditions.files_here or not file_nbytes else conditions.disk_bytes_s / file_nbytes
    return replace(conditions.rates, disk_samples_s=disk_samples_s)


def at_first(conditions: Conditions) -> Tariff:
    """What requests go out at before anything is known: a second of wire, of loader and of agent costs the same.

    Args:
        conditions: what the resources give.
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
    """Prices at which a second of each resource costs the same.

    Args:
        rates: of the wire and of the cores at either end.
    """
    return Prices(wire=1 / rates.wire_bytes_s, loader=1 / rates.loader_cores, agent=1 / rates.agent_cores)


def in_units_of_the_agent(tariff: Tariff, beside: Beside, per_worker: float) -> Tariff:
    """The same tariff at prices of at most 1: a byte's holds what it takes of either CPU, and those of CPU seconds are
    for seconds as the agent estimates them.

    Args:
        tariff: in seconds of the resources.
        beside: how far off those are.
        per_worker: for how many cores of each of the agent's workers.
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
