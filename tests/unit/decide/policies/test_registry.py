"""decide/policies/__init__.py: names, entry points, and what every policy keeps."""

import math
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from sophon_loader.decide import FILE, POLICIES, Facts, Policy, Rates, epoch_terms, policy_named
from sophon_loader.decide import policies as package
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.errors import PlanError
from tests.support.decide_tables import JOBS, WIRE_BOUND, facts_of, random_table, table_of

every_policy = pytest.mark.parametrize("name", POLICIES)


class FromOutside:
    name = "outside"
    needs_profile = False

    def plan(self, facts):
        raise NotImplementedError


@every_policy
def test_a_policy_goes_by_its_name(name):
    policy = policy_named(name)
    assert isinstance(policy, Policy)
    assert policy.name == name


def test_an_object_is_its_own_policy():
    policy = Auto(0.05)
    assert policy_named(policy) is policy


def test_unknown_names_are_answered_with_the_known_ones(monkeypatch):
    points = [EntryPoint("outside", "nowhere:X", "sophon_loader.policies")]
    monkeypatch.setattr(package, "entry_points", lambda group: points)
    known = "no-off, all-off, resize-off, fastflow, sophon, auto, outside"
    with pytest.raises(PlanError, match=f"^policy must be one of {known}, got 'best'"):
        policy_named("best")


def test_entry_points_add_policies(monkeypatch):
    point = EntryPoint("outside", f"{__name__}:FromOutside", "sophon_loader.policies")
    monkeypatch.setattr(package, "entry_points", lambda group: [point] if group == point.group else [])
    assert policy_named("outside").name == "outside"


@pytest.mark.parametrize("thing", [3, None, FromOutside, object()])
def test_what_is_no_policy_is_refused(thing):
    with pytest.raises(PlanError, match="policy must have name, needs_profile and plan"):
        policy_named(thing)


@every_policy
@pytest.mark.parametrize("samples", [0, 1, 2, 300])
@pytest.mark.parametrize("job", JOBS)
def test_a_plan_fits_its_facts_and_is_repeatable(name, samples, job):
    table = random_table(samples, seed=samples)
    facts = facts_of(table, JOBS[job])
    plan, again = (POLICIES[name]().plan(facts) for _ in range(2))
    assert plan.policy == name and plan.reason
    assert plan.samples == samples
    assert np.array_equal(plan.chosen, again.chosen) and plan.reason == again.reason
    if plan.choices == table.choices:  # every sample has what it is to take, and the prediction is that of the model
        assert plan.predicted == epoch_terms(table, plan.chosen, facts.rates)


@every_policy
@pytest.mark.parametrize("samples", [0, 5])
def test_without_a_table_there_is_a_plan_too(name, samples):
    plan = POLICIES[name]().plan(Facts(samples, WIRE_BOUND, None, max_cut=4, resize_cut=2, profiled_share=0.0))
    assert plan.samples == samples and plan.predicted is None
    if POLICIES[name]().needs_profile and samples:
        assert plan.counts() == {FILE: samples}
        assert "not profiled yet" in plan.reason


@every_policy
def test_with_every_rate_infinite(name):
    inf = math.inf
    plan = POLICIES[name]().plan(facts_of(random_table(20), Rates(inf, inf, inf, inf)))
    assert plan.samples == 20


@every_policy
def test_unprofiled_and_unusable_samples_are_mentioned(name):
    table = table_of(
        [[math.nan, 50]] + [[100, 50]] * 9, [[0, 0.001]] * 10, choices=(FILE, *random_table(1).choices[2:])
    )
    plan = POLICIES[name]().plan(facts_of(table, JOBS["wire"], profiled_share=0.75))
    if plan.predicted is not None:
        assert "only 75 % of the samples are profiled" in plan.reason
        assert "1 samples without usable measurements" in plan.reason


@every_policy
def test_a_choice_with_a_nan_is_never_planned(name):
    table = table_of([[100, math.nan], [100, 1]], [[0, 1e-6], [0, 1e-6]], choices=(FILE, random_table(1).choices[2]))
    plan = POLICIES[name]().plan(facts_of(table, JOBS["wire"], max_cut=2))
    if plan.choices == table.choices:
        assert plan.chosen[0] == 0
