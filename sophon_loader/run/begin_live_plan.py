"""Makes a run's plan that changes while it runs, from the results of an earlier one."""

from __future__ import annotations

import math
from dataclasses import replace

from sophon_loader.auto.conditions import Conditions
from sophon_loader.auto.live_plan import LivePlan
from sophon_loader.auto.shared_live import Live
from sophon_loader.decide.policy import PricingPolicy
from sophon_loader.decide.tariff import Traffic
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.fleet.agent import Agent
from sophon_loader.fleet.contact import can_read_here
from sophon_loader.measures.counters import Statistics
from sophon_loader.run.run import Run
from sophon_loader.settings import Settings


def live_plan(
    settings: Settings,
    run: Run,
    agent: Agent | None,
    statistics: Statistics,
    processes: int,
    samples: int,
    before: LivePlan | None,
    admitted: float = 0.0,
    shared: Live | None = None,
) -> LivePlan | None:
    """Return the plan that sets prices in a run with an agent.

    Args:
        settings: of the loader.
        run: that begins.
        agent: of the loader.
        statistics: counted by the workers.
        processes: number of the loader's processes.
        samples: number of samples in the dataset.
        before: plan of the same run with another number of processes, whose results are kept; None at first.
        admitted: share of the samples that the cache on this host is to hold; nothing is asked for to fill it where
            files are read here in any case.
        shared: with workers that run already; None for a new one.

    Returns:
        None if nothing sets prices, or an agent on another host has not answered yet.
    """
    policy, agreement = settings.policy, run.agreement
    if agent is None or not isinstance(policy, PricingPolicy):
        return None
    if agreement is None and not agent.files_here:
        return None
    rates, most = run.profiler.rates, agent.cores(processes)
    if before is None:
        cores = most if agreement is None else min(agreement.agent_cores, most)
        conditions = Conditions.at_first(rates.loader_cores, cores)
    else:
        conditions = replace(before.conditions, max_loader_cores=rates.loader_cores)
    conditions = replace(conditions, max_agent_cores=most, files_here=agent.files_here)
    traffic = Traffic(settings.options.traffic_weight, settings.options.cost_per_gb)
    names = encoding_names()
    has = math.inf if agreement is None else agreement.agent_cores
    live = LivePlan(
        policy,
        samples,
        statistics,
        processes,
        names,
        conditions,
        traffic,
        agent_cores=has,
        admitted=0.0 if agent.files_here else admitted,
        files_from_agents=not can_read_here(run.data, settings, needed=False),
        shared=shared,
    )
    if before is not None:
        live.wanted_cores = before.wanted_cores
    kept = run.profiler.reuse_live() if before is None else before.kept()
    if kept is not None:
        live.take_over(kept)
    return live
