"""The baselines: every sample takes the same choice.

``no-off`` offloads nothing, ``all-off`` everything the agent can do, ``resize-off`` up to the first crop or
resize (No-Off, All-Off and Resize-Off of SOPHON, HotStorage '24, experiment setup). They need no profile.
"""

from __future__ import annotations

import numpy as np

from sophon_loader.decide.cost import epoch_terms
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts
from sophon_loader.decide.plan import Plan, uniform_plan


class NoOff:
    """Offload nothing."""

    name = "no-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample crosses the wire as its file."""
        return same_for_all(self.name, facts, FILE, "asked to offload nothing")


class AllOff:
    """Offload every op that the agent can run."""

    name = "all-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample is cut at ``facts.max_cut``."""
        if facts.max_cut == 0:
            return same_for_all(self.name, facts, FILE, "the agent can run none of the ops: nothing is offloaded")
        return same_for_all(self.name, facts, choice_at(facts, facts.max_cut), f"all cut at {facts.max_cut}")


class ResizeOff:
    """Offload up to the first crop or resize."""

    name = "resize-off"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        """Every sample is cut at ``facts.resize_cut``; without one, or out of reach, nothing is offloaded."""
        cut = facts.resize_cut
        if cut is None:
            return same_for_all(self.name, facts, FILE, "no op crops or resizes: nothing is offloaded")
        if cut > facts.max_cut:
            why = f"the agent reaches stage {facts.max_cut}, the resize ends at {cut}: nothing is offloaded"
            return same_for_all(self.name, facts, FILE, why)
        return same_for_all(self.name, facts, choice_at(facts, cut), f"all cut at {cut}, after the resize")


def choice_at(facts: Facts, cut: int) -> Choice:
    """The unencoded choice at ``cut`` > 0: what the table calls it, else ``pixels``.

    Where the value at the cut is a tensor, the agent sends ``array`` when asked for ``pixels``.
    """
    pixels, array = Choice(cut, "pixels"), Choice(cut, "array")
    if facts.table is not None and pixels not in facts.table.choices and array in facts.table.choices:
        return array
    return pixels


def same_for_all(policy: str, facts: Facts, choice: Choice, reason: str) -> Plan:
    """The plan in which every sample takes ``choice``, predicted if the table has that choice.

    Samples that, by the table, do not have it take their file; the reason counts them.
    """
    table = facts.table
    column = None if table is None else table.index(choice)
    if table is None or column is None:
        return uniform_plan(policy, facts.samples, choice, reason)
    has = table.has(column)
    chosen = np.where(has, np.uint8(column), np.uint8(0))
    missing = facts.samples - int(np.count_nonzero(has))
    if missing:
        reason += f"; {missing} samples have no {choice} and stay files"
    return Plan(
        policy,
        table.choices,
        chosen,
        reason + facts.caveats(),
        epoch_terms(table, chosen, facts.rates),
    )


def unprofiled(policy: str, facts: Facts) -> Plan | None:
    """What a policy that needs costs plans without any, or without samples; None when it can go on."""
    if facts.samples == 0:
        return same_for_all(policy, facts, FILE, "there are no samples")
    if facts.table is None:
        return same_for_all(policy, facts, FILE, "not profiled yet: nothing is offloaded")
    return None


def measured(facts: Facts) -> ChoiceTable:
    """The table of facts that ``unprofiled`` let pass."""
    assert facts.table is not None
    return facts.table
