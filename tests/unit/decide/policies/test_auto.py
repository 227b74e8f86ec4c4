"""decide/policies/auto.py: how traffic and CPU at either end weigh against each other; SOPHON as a special case."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sophon_loader.decide import FILE, Choice, ChoiceTable, Prices, Rates, policy_named
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.decide.tariff import Part
from sophon_loader.errors import PlanError
from tests.support.decide_tables import facts_of, random_table, table_of, taken

INF = math.inf
PIXELS = Choice(2, "pixels")


def test_of_equal_traffic_the_least_agent_cpu_and_then_loader_cpu() -> None:
    choices = (FILE, Choice(2, "a"), Choice(2, "b"), Choice(2, "c"))
    table = table_of([[1e6, 1e5, 1e5, 1e5]] * 150, [[0, 3e-3, 1e-3, 1e-3]] * 150, [[0, 0, 2e-3, 1e-3]] * 150, choices)
    (part,) = Auto().tariff(facts_of(table)).parts
    assert set(taken(table, part.prices)) == {3}


def test_one_byte_does_not_outweigh_much_cpu() -> None:
    choices = (FILE, Choice(2, "slow"), Choice(2, "fast"))
    table = table_of([[1e6, 70_000, 70_010]] * 150, [[0, 9e-3, 1e-3]] * 150, choices=choices)
    (part,) = Auto().tariff(facts_of(table)).parts
    assert set(taken(table, part.prices)) == {2}


def test_sophon_is_the_special_case_of_two_choices_and_one_price() -> None:
    table = random_table(2000, seed=4, absent=0)
    two = ChoiceTable(
        table.choices[::2][:2], *(a[:, [0, 2]] for a in (table.wire_bytes, table.agent_s, table.loader_s))
    )
    facts = facts_of(two, Rates(1e9, 60e6, INF, 0.1))
    ours, theirs = Auto(slack=0).tariff(facts), policy_named("sophon").plan(facts)
    assert ours.predicted.seconds == pytest.approx(theirs.predicted.seconds, rel=1e-3)
    for part in ours.parts:
        share = np.mean(taken(two, part.prices) != theirs.chosen)
        assert share < 0.02 or part.share < 0.1, "but for samples that are as good either way"


def test_an_epoch_can_cost_no_time_at_all() -> None:
    table = table_of([[100, 0]] * 3, [[0, 1]] * 3, choices=(FILE, PIXELS))
    tariff = Auto().tariff(facts_of(table, Rates(INF, 1, INF, INF)))
    assert tariff.predicted.seconds == pytest.approx(0, abs=300 * 1e-5), "or next to none, of 300 s"


@pytest.mark.parametrize("slack", [-0.1, 1.1, math.nan])
def test_slack_is_checked(slack: float) -> None:
    with pytest.raises(PlanError, match=r"slack must be in \[0, 1\]"):
        Auto(slack)


@pytest.mark.parametrize("value", [-1.0, math.nan, INF])
def test_prices_are_finite_and_not_negative(value: float) -> None:
    with pytest.raises(PlanError, match="agent must be >= 0 and finite"):
        Part(1.0, Prices(1, 1, value))
