"""Share of the work that each of several agents has done for a loader."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sophon_loader.figures import counted, percent, size

IN_USE, SILENT, MISSING, LEFT, REFUSED = "in use", "does not answer", "yet to come", "has left", "not used"
STATES = (IN_USE, SILENT, MISSING, LEFT, REFUSED)
"""States of an agent, from good to bad. If ranks differ, the report has the worst."""
GAIN = 1.05
"""Minimum factor in samples/s that twice the agent's cores must bring, for more cores to count as useful."""


@dataclass(frozen=True)
class AgentShare:
    """Share of one of several agents. Counts start when the loader is made, and when its transforms change.

    Args:
        agent: its address.
        samples, wire_bytes: sent by it.
        state: one of `STATES`.
        why: what arrived instead of an answer, or the reason why it is not used; else "".
        group: its group; "" for none.
        lacks: minimum number of samples that it lacks, counted where others have their files.
        of_samples: number of samples in the dataset.
        lost_at: time at which it last stopped answering and was given up, in seconds since 1970; 0 if never.
        losses: number of times that it was given up so, each after it had answered again.
    """

    agent: str
    samples: int = 0
    wire_bytes: int = 0
    state: str = IN_USE
    why: str = ""
    group: str = ""
    lacks: int = 0
    of_samples: int = 0
    lost_at: float = 0.0
    losses: int = 0

    @property
    def note(self) -> str:
        """A sentence about this agent for the report's notes."""
        if self.state == REFUSED:
            return f"the agent at {self.agent} is not used: {self.why}"
        text = f"the agent at {self.agent} has sent {counted(self.samples, 'sample')}, {size(self.wire_bytes)}"
        if self.lacks:
            share = f" ({percent(self.lacks / self.of_samples)})" if self.of_samples else ""
            text += f", and lacks at least {counted(self.lacks, 'sample')}{share}"
        if self.state == MISSING:
            return f"{text}; it has yet to come, and the others do its part: {self.why}"
        return text + {SILENT: ", and does not answer now", LEFT: ", and has left"}.get(self.state, "")


def agents_of_use(
    cores: float | None, agents: float | None, states: Sequence[str], would_bring: Mapping[str, float]
) -> str:
    """Return a sentence with the number of agents that a loader could use and that it has; "" if unknown.

    Args:
        cores, agents: `wanted_agent_cores` and `wanted_agents` of a report.
        states: of several agents; empty if there is one.
        would_bring: of the report. Ranks, or moments, may differ in whether an agent is useful.
    """
    if cores is None or agents is None:
        return ""
    if not (cores and agents):
        if would_bring.get("agent-cpu", 1.0) >= GAIN:
            return "More cores of agents would be of use; how many is not known."
        return "No agent would be of use: an epoch takes hardly longer without any."
    there = counted(cores / agents * (states.count(IN_USE) if states else 1), "core")
    whole = counted(math.ceil(round(agents, 2) or 1), "agent")
    of_use = f"{counted(max(0.1, round(cores, 1)), 'core')} of agents would be of use, that is {whole} like these"
    return f"{of_use}; there {'is' if there == '1 core' else 'are'} {there}."


def lost_now(agents: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of agents that do not answer now: "1 of 2 agents lost (3 losses so far)"; "" if all do.

    Args:
        agents: plain data, as in `Report.as_dict()`; those that have left, or are not used, do not count.
    """
    there = [one for one in agents if one["state"] not in (LEFT, REFUSED)]
    lost = [one["state"] for one in there].count(SILENT)
    so_far = sum(one.get("losses", 0) for one in there)
    more = f" ({so_far} losses so far)" if so_far > lost else ""
    return f"{lost} of {counted(len(there), 'agent')} lost{more}" if lost else ""


def losses(agents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each agent that was lost: how often, when last, and what took over.

    Args:
        agents: plain data, as in `Report.as_dict()`.
    """
    found = []
    for one in agents:
        if not (lost_at := one.get("lost_at", 0.0)):
            continue
        others = [other["agent"] for other in agents if other is not one and other["state"] == IN_USE]
        instead = "the other agents" if len(others) > 1 else f"the one at {others[0]}" if others else "this host"
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(lost_at))
        often = f"lost {one['losses']} times, last" if one.get("losses", 1) > 1 else "lost"
        took_over = f"{instead} took over" + ("" if others else ", as far as it has the files")
        now = {IN_USE: "; it is back", LEFT: "; it has left"}.get(one["state"], "; it does not answer yet")
        found.append(f"The agent at {one['agent']} was {often} at {when}, and {took_over}{now}.")
    return found


def summed_shares(ranks: Iterable[Iterable[AgentShare]]) -> tuple[AgentShare, ...]:
    """Return each agent once: counts of ranks are added, and of their states and losses the worst is taken.

    Args:
        ranks: the agents of each rank.
    """
    found: dict[str, AgentShare] = {}
    for one in (one for those in ranks for one in those):
        if (known := found.get(one.agent)) is None:
            found[one.agent] = one
            continue
        worst = max(known, one, key=lambda share: STATES.index(share.state))
        found[one.agent] = replace(
            known,
            samples=known.samples + one.samples,
            wire_bytes=known.wire_bytes + one.wire_bytes,
            lacks=max(known.lacks, one.lacks),
            lost_at=max(known.lost_at, one.lost_at),
            losses=max(known.losses, one.losses),
            state=worst.state,
            why=worst.why,
        )
    return tuple(found.values())
