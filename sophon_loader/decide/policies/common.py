"""Parts that most policies need: a plan of one choice, a plan before any measurement, the table once it is measured."""

from __future__ import annotations

import numpy as np

from sophon_loader.decide.cost import epoch_time
from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts
from sophon_loader.decide.plan import Plan, uniform_plan


def choice_at(facts: Facts, cut: int) -> Choice:
    """Return the unencoded choice at a cut: the one of the table, else `pixels`.

    If the value at the cut is a tensor, the agent sends `array` when asked for `pixels`.

    Args:
        facts: its table, if it has one, shows which of the two the cut has.
        cut: a stage > 0.
    """
    pixels, array = Choice(cut, "pixels"), Choice(cut, "array")
    if facts.table is not None and pixels not in facts.table.choices and array in facts.table.choices:
        return array
    return pixels


def same_for_all(policy: str, facts: Facts, choice: Choice, reason: str) -> Plan:
    """Return the plan in which every sample takes one choice, predicted if the table has that choice of each.

    Samples that were measured and do not have the choice take their file; the reason counts them. A sample that was not
    measured takes the choice: an agent that cannot make it sends the file.

    Args:
        policy: name of the policy that makes the plan.
        facts: what is known.
        choice: the choice of every sample.
        reason: why, in one line a user can read.
    """
    table = facts.table
    column = None if table is None else table.index(choice)
    if table is None or column is None:
        return uniform_plan(policy, facts.samples, choice, reason)
    has, lacks = table.has(column), table.lacks(column)
    chosen = np.where(lacks, np.uint8(0), np.uint8(column))
    if missing := int(np.count_nonzero(lacks)):
        reason += f"; {missing} samples have no {choice} and stay files"
    if not (has | lacks).all():
        return Plan(policy, table.choices, chosen, reason)
    return Plan(policy, table.choices, chosen, reason + facts.caveats(), epoch_time(table, chosen, facts.rates))


def unprofiled(policy: str, facts: Facts) -> Plan | None:
    """Return the plan of a policy that needs costs if there are no costs, or no samples.

    Args:
        policy: name of the policy that makes the plan.
        facts: what is known.

    Returns:
        None if there are costs to plan with (`measured` then returns them).
    """
    if facts.samples == 0:
        return same_for_all(policy, facts, FILE, "there are no samples")
    if facts.table is None:
        return same_for_all(policy, facts, FILE, "not profiled yet: nothing is offloaded")
    return None


def measured(facts: Facts) -> ChoiceTable:
    """Return the table of facts for which `unprofiled` returned None."""
    assert facts.table is not None
    return facts.table
