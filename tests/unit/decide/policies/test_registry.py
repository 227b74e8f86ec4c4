"""decide/policies/__init__.py: names, entry points, and what every policy keeps."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint
from typing import Any, get_args

import numpy as np
import pytest

from sophon_loader.decide import (
    FILE,
    POLICIES,
    Facts,
    Plan,
    Policy,
    PricingPolicy,
    Rates,
    Tariff,
    Traffic,
    epoch_time,
    policy_named,
)
from sophon_loader.decide import policies as package
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.decide.tariff import NO_TRAFFIC
from sophon_loader.errors import PlanError
from tests.support.decide_tables import JOBS, WIRE_BOUND, facts_of, random_table, table_of

PLANNING = [name for name in POLICIES if isinstance(policy_named(name), Policy)]
every_policy = pytest.mark.parametrize("name", PLANNING)


class FromOutside:
    name = "outside"
    needs_profile = False

    def plan(self, facts: Facts) -> Plan:
        raise NotImplementedError


class PricesFromOutside:
    name = "prices-outside"

    def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
        raise NotImplementedError


def test_editors_complete_the_names_of_all_policies() -> None:
    assert get_args(package.PolicyName) == tuple(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_goes_by_its_name(name: str) -> None:
    policy = policy_named(name)
    assert policy.name == name
    assert isinstance(policy, Policy) is (name != "auto") and isinstance(policy, PricingPolicy) is (name == "auto")


@pytest.mark.parametrize("policy", [Auto(0.05), FromOutside(), PricesFromOutside()], ids=lambda policy: policy.name)
def test_an_object_is_its_own_policy(policy: Policy | PricingPolicy) -> None:
    assert policy_named(policy) is policy


def test_unknown_names_are_answered_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("outside", "nowhere:X", "sophon_loader.policies")]
    monkeypatch.setattr(package, "entry_points", lambda group: points)
    known = "no-off, all-off, resize-off, fastflow, fastflow-every, sophon, auto, outside"
    with pytest.raises(PlanError, match=f"^policy must be one of {known}, got 'best'"):
        policy_named("best")


def test_entry_points_add_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    group, made = "sophon_loader.policies", {"outside": "FromOutside", "prices-outside": "PricesFromOutside"}
    points = [EntryPoint(name, f"{__name__}:{cls}", group) for name, cls in made.items()]
    monkeypatch.setattr(package, "entry_points", lambda group: [one for one in points if one.group == group])
    for name in made:
        assert policy_named(name).name == name


class NamedOnly:
    name = "named-only"


@pytest.mark.parametrize("thing", [3, None, FromOutside, PricesFromOutside, Auto, NamedOnly(), object()])
def test_what_is_no_policy_is_refused(thing: Any) -> None:
    with pytest.raises(PlanError, match="policy must have name, needs_profile and plan"):
        policy_named(thing)


@every_policy
@pytest.mark.parametrize("samples", [0, 1, 2, 300])
@pytest.mark.parametrize("job", JOBS)
def test_a_plan_fits_its_facts_and_is_repeatable(name: str, samples: int, job: str) -> None:
    table = random_table(samples, seed=samples)
    facts = facts_of(table, JOBS[job])
    plan, again = (POLICIES[name]().plan(facts) for _ in range(2))
    assert plan.policy == name and plan.reason
    assert plan.samples == samples
    assert np.array_equal(plan.chosen, again.chosen) and plan.reason == again.reason
    if plan.choices == table.choices:  # every sample has what it is to take, and the prediction is that of the model
        assert plan.predicted == epoch_time(table, plan.chosen, facts.rates)


@every_policy
@pytest.mark.parametrize("samples", [0, 5])
def test_without_a_table_there_is_a_plan_too(name: str, samples: int) -> None:
    plan = POLICIES[name]().plan(Facts(samples, WIRE_BOUND, None, max_cut=4, resize_cut=2, profiled_share=0.0))
    assert plan.samples == samples and plan.predicted is None
    if POLICIES[name]().needs_profile and samples:
        assert plan.counts() == {FILE: samples}
        assert "not profiled yet" in plan.reason


@every_policy
def test_with_every_rate_infinite(name: str) -> None:
    inf = math.inf
    plan = POLICIES[name]().plan(facts_of(random_table(20), Rates(inf, inf, inf, inf)))
    assert plan.samples == 20


@every_policy
def test_unprofiled_and_unusable_samples_are_mentioned(name: str) -> None:
    table = table_of(
        [[math.nan, 50]] + [[100, 50]] * 9, [[0, 0.001]] * 10, choices=(FILE, *random_table(1).choices[2:])
    )
    plan = POLICIES[name]().plan(facts_of(table, JOBS["wire"], profiled_share=0.75))
    if plan.predicted is not None:
        assert "only 75 % of the samples are profiled" in plan.reason
        assert "1 samples without usable measurements" in plan.reason


@every_policy
def test_a_choice_with_a_nan_is_never_planned(name: str) -> None:
    table = table_of([[100, math.nan], [100, 1]], [[0, 1e-6], [0, 1e-6]], choices=(FILE, random_table(1).choices[2]))
    plan = POLICIES[name]().plan(facts_of(table, JOBS["wire"], max_cut=2))
    if plan.choices == table.choices:
        assert plan.chosen[0] == 0
