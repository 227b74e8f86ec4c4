"""decide/policies/fixed.py"""

from __future__ import annotations

import math

import numpy as np
import pytest

from sophon_loader.decide import FILE, Choice, Facts, policy_named
from sophon_loader.decide.facts import MadeTable
from tests.support.decide_tables import WIRE_BOUND, facts_of, table_of

PIXELS, ARRAY = Choice(2, "pixels"), Choice(4, "array")


def facts_without_table(max_cut: int = 4, resize_cut: int | None = 2) -> Facts:
    return Facts(3, WIRE_BOUND, None, max_cut, resize_cut, 0.0)


@pytest.mark.parametrize(
    ("name", "choice"),
    [("no-off", FILE), ("all-off", Choice(4, "pixels")), ("resize-off", PIXELS)],
)
def test_without_a_table(name: str, choice: Choice) -> None:
    assert policy_named(name).plan(facts_without_table()).counts() == {choice: 3}


@pytest.mark.parametrize(
    ("name", "facts", "text"),
    [
        ("all-off", facts_without_table(max_cut=0, resize_cut=None), "the agent can run none of the ops"),
        ("resize-off", facts_without_table(resize_cut=None), "no op crops or resizes"),
        ("resize-off", facts_without_table(max_cut=1), "the agent can run 1 op, and the resize is op 2"),
    ],
)
def test_what_cannot_be_offloaded_is_not_and_says_so(name: str, facts: Facts, text: str) -> None:
    plan = policy_named(name).plan(facts)
    assert plan.counts() == {FILE: 3}
    assert text in plan.reason and "nothing is offloaded" in plan.reason


def test_with_a_table_the_time_is_predicted_and_array_stands_for_pixels() -> None:
    table = table_of([[60e6, 30e6, 120e6]] * 2, [[0, 1, 4]] * 2, choices=(FILE, PIXELS, ARRAY))
    facts = facts_of(table)
    assert policy_named("no-off").plan(facts).predicted.wire_s == 2.0
    assert policy_named("resize-off").plan(facts).predicted.wire_s == 1.0
    all_off = policy_named("all-off").plan(facts)
    assert all_off.counts() == {ARRAY: 2}
    assert (all_off.predicted.wire_s, all_off.predicted.agent_cpu_s) == (4.0, 4.0)


def test_a_choice_that_the_table_lacks_is_taken_but_not_predicted() -> None:
    plan = policy_named("resize-off").plan(facts_of(table_of([[1]], [[0]])))
    assert plan.counts() == {PIXELS: 1}
    assert plan.predicted is None


def test_samples_without_the_choice_stay_files() -> None:
    table = table_of([[100, 50], [100, math.inf]], [[0, 1]] * 2, choices=(FILE, PIXELS))
    plan = policy_named("resize-off").plan(facts_of(table))
    assert plan.counts() == {FILE: 1, PIXELS: 1}
    assert "1 samples have no pixels@2 and stay files" in plan.reason


@pytest.mark.parametrize("name", ["all-off", "resize-off"])
def test_samples_that_nobody_measured_take_the_choice(name: str) -> None:
    """As without a table: one sample that came as its file is measured, and says nothing of the others."""
    sizes, times = np.array([[100, math.inf]] * 3, np.float32), np.zeros((3, 2), np.float32)
    measured = np.array([False, True, False])
    table = MadeTable((FILE, PIXELS), 3, lambda rows: (sizes[rows], times[rows], times[rows]), measured=measured)
    plan = policy_named(name).plan(Facts(3, WIRE_BOUND, table, 2, 2, 1 / 3))
    assert [plan.choices[number] for number in plan.chosen] == [PIXELS, FILE, PIXELS]
    assert "1 samples have no pixels@2" in plan.reason and "average" not in plan.reason
    assert plan.predicted is None
