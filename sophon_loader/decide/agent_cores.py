"""Number of agent cores that a job could use: the fewest with which an epoch is nearly as short as with any number.

For a budget of B seconds this is one linear programme. Of all plans that keep wire, loader and GPU within B, it finds
the one with the least CPU time at the agent, A. Cores that do A in B are A / B, and with fewer no plan keeps within B.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sophon_loader.decide.dual import Problem, file_column, least_time, least_traffic
from sophon_loader.decide.facts import Facts

NEARLY = 1.05
"""Factor by which an epoch may exceed the shortest one: the last percent would take as many cores as all others."""
_GAP = 1e-5
"""Relative gap between bounds at which to stop: finer than any measurement."""
_MAX_SWEEPS = 200
_INSTANT = 1e-6
"""Share of the time without offloading below which all epochs count as equally short."""


def wanted_agent_cores(facts: Facts, *, files_from_agents: bool = False) -> float:
    """Return the smallest number of agent cores with which an epoch takes at most `NEARLY` times as long as with any
    number.

    The current number (`facts.rates.agent_cores`) does not matter. The result is 0 if an epoch without agents, in which
    every sample is made from its file, is as short.

    Args:
        facts: of some samples, with a table.
        files_from_agents: True if only agents can supply the files, so that 0 would be none.

    Raises:
        PlanError: `facts` has no table.

    Example:
        >>> wanted_agent_cores(facts)
        3.4
    """
    problem = Problem.of(facts)
    problem = replace(problem, seconds_per=problem.seconds_per * [1, 1, 0])  # as many as you like
    columns = [file_column(problem)]
    without_s = problem.seconds(columns[0].sums)
    shortest = least_time(problem, columns, _GAP, _MAX_SWEEPS)
    budget_s = max(NEARLY * shortest.upper, _INSTANT * without_s)
    each_s = float(problem.agent.mean(dtype=np.float64)) if problem.agent.size else 0.0
    if not budget_s or not each_s or (without_s <= budget_s and not files_from_agents):
        return 0.0
    goal = np.array([0.0, 0.0, 1 / (each_s * problem.samples)])
    found = least_traffic(problem, columns, shortest.shares, goal, budget_s, _GAP, _MAX_SWEEPS)
    return float(found.shares @ np.array([column.sums[2] for column in columns])) / budget_s
