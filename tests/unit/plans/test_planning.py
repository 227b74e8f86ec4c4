"""Which plan is followed: kept while its rates hold, made anew when they move."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sophon_loader.decide.facts import FILE, Choice, ChoiceTable, Facts, Rates
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policies import NoOff, Sophon
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policy import Policy
from sophon_loader.plans.kept import TrialFile
from sophon_loader.plans.planning import Known, Planner
from sophon_loader.plans.profile_store import ProfileKey
from tests.support.decide_tables import WIRE_BOUND, facts_of, random_table

SAMPLES = 200
TABLE = random_table(SAMPLES)
MEASURES = "this epoch measures, without offloading"


@dataclass
class Knowledge:
    """What is known, and how often facts were asked for."""

    rates: Rates = WIRE_BOUND
    coverage: float = 1.0
    table: ChoiceTable | None = field(default_factory=lambda: TABLE)
    asked: int = 0

    def facts(self) -> Facts:
        self.asked += 1
        if self.table is None:
            return Facts(SAMPLES, self.rates, None, 4, 2, 0.0)
        return facts_of(self.table, self.rates)

    def now(self) -> Known:
        return Known(self.coverage, self.rates, self.facts)


def offloads(plan: Plan) -> bool:
    return plan.counts() != {FILE: SAMPLES}


def test_without_a_profile_the_epoch_measures() -> None:
    planner, knowledge = Planner(Sophon(), SAMPLES), Knowledge(table=None, coverage=0.0)
    assert planner.needs_profile and planner.by_cost
    followed = planner.follow(knowledge.now(), lag=3)
    assert followed.plan.reason == MEASURES and not offloads(followed.plan) and followed.predicted is None
    knowledge.table, knowledge.coverage = TABLE, 1.0
    assert offloads(planner.follow(knowledge.now(), lag=3).plan)


def test_a_policy_without_a_profile_plans_at_once() -> None:
    planner = Planner(NoOff(), SAMPLES)
    assert not planner.needs_profile and not planner.by_cost
    followed = planner.follow(Knowledge(table=None).now(), lag=0)
    assert followed.plan.reason != MEASURES and not offloads(followed.plan)


def test_a_plan_is_kept_while_its_rates_hold() -> None:
    planner, knowledge = Planner(Sophon(), SAMPLES), Knowledge()
    first = planner.follow(knowledge.now(), lag=0)
    assert planner.follow(knowledge.now(), lag=0).plan is first.plan
    assert knowledge.asked == 1, "a table has a row per sample: it is made for a new plan only"


def test_a_kept_plan_predicts_at_the_rates_as_they_are_now() -> None:
    planner, knowledge = Planner(Sophon(), SAMPLES), Knowledge()
    first = planner.follow(knowledge.now(), lag=0)
    knowledge.rates = replace(WIRE_BOUND, wire_bytes_s=WIRE_BOUND.wire_bytes_s * 0.98)
    again = planner.follow(knowledge.now(), lag=0)
    assert again.plan is first.plan and first.predicted is not None and again.predicted is not None
    assert again.predicted.seconds == pytest.approx(first.predicted.seconds / 0.98)


@pytest.mark.parametrize("change", [{"coverage": 0.9}, {"rates": replace(WIRE_BOUND, wire_bytes_s=30e6)}], ids=str)
def test_a_plan_is_made_anew_when_what_it_was_made_from_changes(change: dict[str, object]) -> None:
    planner, knowledge = Planner(Sophon(), SAMPLES), Knowledge()
    first = planner.follow(knowledge.now(), lag=0)
    for name, value in change.items():
        setattr(knowledge, name, value)
    assert planner.follow(knowledge.now(), lag=0).plan is not first.plan
    assert knowledge.asked == 2


@pytest.mark.parametrize("policy", [Sophon(), NoOff(), FastFlow(trial_steps=4)], ids=lambda policy: policy.name)
def test_measuring_offloads_nothing_and_then_plans_anew(policy: Policy) -> None:
    """Also when no rate has moved, so that there would be no other reason to plan."""
    planner, knowledge = Planner(policy, SAMPLES), Knowledge()
    before = planner.follow(knowledge.now(), lag=0)
    measuring = planner.follow(knowledge.now(), lag=0, measuring=True)
    assert measuring.plan.reason == MEASURES and not offloads(measuring.plan)
    after = planner.follow(knowledge.now(), lag=0)
    assert after.plan.reason == before.plan.reason != MEASURES


# --- trying --------------------------------------------------------------------------------------------------------


def test_a_policy_that_tries_is_told_of_batches_and_changes_in_mid_epoch() -> None:
    planner, knowledge = Planner(FastFlow(trial_steps=2), SAMPLES), Knowledge()
    assert not Planner(Sophon(), SAMPLES).trying and planner.by_cost
    first = planner.follow(knowledge.now(), lag=1)
    assert planner.trying and not offloads(first.plan)
    # Workers warm up for one batch, two have to pass, and two are the window.
    *none, told = [planner.delivered(1.0, 8, 0.08, 8) for _ in range(5)]
    assert none == [None] * 4 and told is not None and offloads(told.plan)
    assert planner.current is told
    assert planner.follow(knowledge.now(), lag=1).plan is told.plan, "trials go on over the end of an epoch"


def test_nothing_is_told_to_a_policy_that_does_not_try() -> None:
    planner = Planner(Sophon(), SAMPLES)
    planner.follow(Knowledge().now(), lag=0)
    assert planner.delivered(1.0, 8, 0.08, 8) is None


@pytest.mark.parametrize("lag", [1, 4, 25])
def test_with_trials_of_an_earlier_run_at_most_a_tenth_of_its_steps_is_tried(tmp_path: Path, lag: int) -> None:
    """FastFlow's metric store, through its file; the later run has no lag that would have to pass."""
    key, found = ProfileKey("d", "p", "local", {}), []

    def run() -> int:
        file = TrialFile(tmp_path / "run.npz", key, {"processes": 1.0})
        kept = file.reuse()
        planner = Planner(
            FastFlow(), SAMPLES, None if isinstance(kept, str) else kept, lambda kept: found.append(file.save(kept))
        )
        followed, tried = planner.follow(Knowledge(table=None).now(), lag), 0
        while planner.trying:
            where = followed.plan.reason
            tried += where.startswith(("trial of", "check of"))
            seconds = 0.02 if len(followed.plan.counts()) == 1 else 0.01  # side by side they are faster than either
            cpu_s = 0.0 if FILE not in followed.plan.counts() else 0.08
            followed = planner.delivered(seconds, 8, cpu_s, 8) or followed
        assert followed.plan.counts() == {FILE: 100, Choice(4, "pixels"): 100}
        return tried

    first, again = run(), run()
    assert first == 25 + 3 * (50 + 2 * lag) and again <= first / 10
    assert found == [""], "kept once"
