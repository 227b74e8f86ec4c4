"""Reasons, in words, why an epoch offloaded nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sophon_loader.auto.live_plan import LivePlan
from sophon_loader.decide.facts import FILE
from sophon_loader.decide.policies.fixed import NoOff
from sophon_loader.decide.words import NOTHING
from sophon_loader.fleet.contact import Contact
from sophon_loader.fleet.contacts import Contacts
from sophon_loader.pipeline.chain import Chain
from sophon_loader.plans.planning import Planner
from sophon_loader.report.report import Report
from sophon_loader.run.run import Run

NO_EPOCH = "no epoch has begun"
NO_AGENT = "no agent was given"
LEFT = "the epoch was left before its end"


@dataclass(frozen=True)
class Circumstances:
    """Circumstances of an epoch.

    Args:
        agent: "the agent at tcp://fileserver:5555"; "" if none was given.
        alone: reason why there is no agent, though one was given; "" otherwise.
        starting: True if the agent has not answered yet.
        missing: error from an agent on another host when the loader began without it; "" otherwise.
        ready_after: number of samples delivered before an agent answered that started along with the loader, or later.
        no_op: reason why the agent runs none of the ops; "" if it runs some.
        offloads: True if the current plan or tariff offloads anything.
        gone: True if workers have given the agent up.
    """

    agent: str = ""
    alone: str = ""
    starting: bool = False
    missing: str = ""
    ready_after: int = 0
    no_op: str = ""
    offloads: bool = True
    gone: bool = False


def circumstances(
    run: Run, contact: Contact | Contacts, policy: Any, followed: LivePlan | Planner | None
) -> Circumstances:
    """Return the circumstances that all epochs of a run share.

    Args:
        run: of the loader.
        contact: with its agent.
        policy: of the loader.
        followed: decides on offloading; None if nothing does.
    """
    name, alone, missing = contact.name, contact.why_alone, contact.missing
    if contact.agent is None:
        return Circumstances()
    if run.agreement is None:
        return Circumstances(name, alone, starting=contact.asked, missing=missing)
    if isinstance(followed, LivePlan):
        offloads = followed.offloads
    else:
        plan = followed.current.plan if followed is not None and followed.current is not None else None
        offloads = plan is not None and set(plan.counts()) != {FILE}
    if isinstance(policy, NoOff):  # first, since the user asked for it
        return Circumstances(name, offloads=False)
    no_op = _no_op(run.split.chains, run.agreement.reach, run.agreement.notes)
    return Circumstances(name, alone, missing=missing, no_op=no_op, offloads=offloads, gone=contact.is_gone)


def _no_op(chains: Sequence[Chain], reach: Sequence[int], notes: Sequence[str]) -> str:
    """Return the reason why the agent runs no op but decoding, which makes values larger; "" if it runs others."""
    if max(reach) > 1:
        return ""
    if not max(reach) and notes:
        return notes[0]
    unknown = [(chain, 1) for chain in chains if len(chain) > 1]
    if not unknown:
        return ""
    chain, position = unknown[0]
    where = "" if chain.describable <= position else " there"
    return f"the agent could only decode: {chain.ops[position].label} is not registered{where}"


def why_nothing(found: Circumstances, report: Report) -> str:
    """Return the first sufficient reason; "" if something was offloaded, unless only the agent's late start explains
    it.

    Args:
        found: circumstances of the epoch.
        report: of it so far.
    """
    samples = report.totals.samples
    ready = f"{found.agent} was ready after {found.ready_after} of {samples} samples" if found.ready_after else ""
    if report.offloading:
        return ready if found.missing else ""
    if not found.agent or found.alone:
        return found.alone or NO_AGENT
    if found.starting and found.missing:
        return f"{ready}, and is used from the next epoch on" if ready else f"{found.agent} is missing: {found.missing}"
    if found.starting:
        return f"{found.agent} is still starting"
    if not samples:
        return "no sample has been delivered"
    silent = found.gone and report.totals.fallbacks == samples
    if found.no_op and not silent:
        return found.no_op
    if (silent or found.offloads) and (why := _failure(found.agent, report, gone=found.gone)):
        return why
    late = ready and f"{ready}; "
    end = f"; for every sample {found.agent} found the file cheaper" if found.offloads and not found.ready_after else ""
    return f"{late}policy {report.policy}: {report.plan_reason.removesuffix(f': {NOTHING}')}{end}"


def _failure(agent: str, report: Report, *, gone: bool) -> str:
    """Return a text on what arrived in place of the requested values; "" if nothing did."""
    totals = report.totals
    if totals.fallbacks:
        said = "did not answer" if gone else "sent nothing usable"
        return f"{agent} {said} for {totals.fallbacks} of {totals.samples} samples"
    if totals.degraded:
        return f"{agent} sent the whole file for {totals.degraded} of {totals.samples} samples"
    return ""
