"""decide/policies/fastflow.py: the state machine, its shares, and when it declines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sophon_loader.decide import FILE, Choice, Facts, FastFlow, Plan, Rates, Trial, policy_named
from sophon_loader.errors import PlanError
from tests.support.decide_tables import facts_of, random_table, table_of

ALL, HALFWAY = Choice(4, "pixels"), Choice(2, "pixels")


def facts(gpu: float = 1000.0, samples: int = 1000, max_cut: int = 4) -> Facts:
    return Facts(samples, Rates(gpu, 1e9, 8, 8), None, max_cut, 2, 0.0)


def local(samples_s: float = 100.0, cpu: float = 0.01) -> Trial:
    return Trial(FILE, 0.0, samples_s, cpu)


def remote(samples_s: float, cpu: float = 0.0, choice: Choice = ALL) -> Trial:
    return Trial(choice, 1.0, samples_s, cpu)


def check(share: float, samples_s: float, choice: Choice = ALL) -> Trial:
    return Trial(choice, share, samples_s, 0.005)


def trial_of(plan: Plan | None, samples_s: float, cpu: float) -> Trial:
    assert plan is not None
    return Trial.of(plan, samples_s, cpu)


def test_the_order_of_trials() -> None:
    policy, known = FastFlow(cuts=[2, 4]), facts()
    first = policy.next_trial([], known)
    assert first.counts() == {FILE: 1000}
    trials = [trial_of(first, 100, 0.01)]
    second = policy.next_trial(trials, known)
    assert second.counts() == {HALFWAY: 1000}
    trials.append(trial_of(second, 100, 0.0))
    third = policy.next_trial(trials, known)
    assert third.counts() == {ALL: 1000}
    trials.append(trial_of(third, 300, 0.0))
    fourth = policy.next_trial(trials, known)
    assert fourth.counts() == {FILE: 250, ALL: 750}  # 100 : 300
    trials.append(trial_of(fourth, 380, 0.0025))
    assert policy.next_trial(trials, known) is None
    plan = policy.decide(trials, known)
    assert plan.counts() == {FILE: 250, ALL: 750}
    assert np.array_equal(plan.chosen, fourth.chosen)


def test_the_default_candidate_is_the_whole_pipeline() -> None:
    assert FastFlow().next_trial([local()], facts()).counts() == {ALL: 1000}


def test_every_boundary_is_a_candidate_by_name() -> None:
    policy = policy_named("fastflow-every")
    assert isinstance(policy, FastFlow) and policy.name == FastFlow("every").name == "fastflow-every"
    trials = [local()]
    while (plan := policy.next_trial(trials, facts())) is not None and len(plan.counts()) == 1:
        trials.append(trial_of(plan, 100 * len(trials), 0.0))
    assert [str(trial.choice) for trial in trials[1:]] == ["pixels@1", "pixels@2", "pixels@3", "pixels@4"]
    assert plan is not None and plan.counts() == {FILE: 200, ALL: 800}, "the best of them, 100 : 400"
    assert plan.policy == "fastflow-every"


@pytest.mark.parametrize(
    ("local_s", "remote_s", "ocycle", "gpu", "share"),
    [
        (100, 300, 0.0, 1000, 0.75),  # below the GPU: R / (L + R), whatever receiving costs
        (100, 300, 0.005, 1000, 0.75),
        (100, 300, 0.0, 200, 1.0),  # R is more than the D = 100 that is lacking, and more than the GPU takes
        (100, 120, 0.005, 200, 0.75),  # D = 100 * 1.5
        (140, 80, 0.0, 200, 0.35),  # local is faster: between R = 80 and D = 60
    ],
)
def test_published_shares_by_hand(local_s: float, remote_s: float, ocycle: float, gpu: float, share: float) -> None:
    """As `calculate_ratio_local_optimal` of FastFlow's code has them, there as the share that stays local."""
    policy, known = FastFlow(published=True), facts(gpu)
    trials = [local(local_s), remote(remote_s, ocycle)]
    assert policy.next_trial(trials, known) is None, "nothing is checked"
    plan = policy.decide(trials, known)
    assert plan.counts().get(ALL, 0) == 1000 * share and "not checked" in plan.reason


def test_the_published_form_compares_candidates_by_what_they_leave_to_the_loader() -> None:
    """R + L * (1 - OCycle / PCycle): 210 + 100 * 0.5 is less than 200 + 100."""
    policy = FastFlow(cuts=[2, 4], published=True)
    trials = [local(), remote(210, 0.005, HALFWAY), remote(200, 0.0)]
    assert ALL in policy.decide(trials, facts()).counts()


@pytest.mark.parametrize(("gpu", "goes_on"), [(130.0, False), (130.1, True)])
def test_a_bottleneck_is_above_1_3(gpu: float, goes_on: bool) -> None:
    assert (FastFlow().next_trial([local()], facts(gpu)) is not None) is goes_on
    reason = FastFlow().decide([local()], facts(gpu)).reason
    assert ("could take 1.30 times what the local pipeline gives, not more than 1.3" in reason) is not goes_on


@pytest.mark.parametrize(
    ("remote_s", "ocycle", "gpu", "share"),
    [
        (100, 0.0, 1000, 0.5),  # side by side, below the GPU
        (300, 0.0, 1000, 0.75),
        (100, 0.005, 1000, 0.667),  # receiving takes half of the local pipeline: 50 + 100
        (300, 0.0, 200, 0.5),  # 400 together is more than 200: 100 local + 100 remote suffice
        (300, 0.005, 200, 1.0),  # each remote sample costs half a local one: r = 100 / 0.5
        (300, 0.0025, 200, 0.667),  # r = 100 / 0.75
        (500, 0.02, 200, 1.0),  # dearer than local on the loader, but remote alone feeds the GPU
    ],
)
def test_shares_by_hand(remote_s: float, ocycle: float, gpu: float, share: float) -> None:
    offer = FastFlow()._best([local(), remote(remote_s, ocycle)], facts(gpu))
    assert offer.share == share


def test_when_less_than_one_share_reaches_the_gpu_the_smaller_share_wins() -> None:
    trials = [local(), remote(400, choice=HALFWAY, cpu=0.005), remote(300)]
    offer = FastFlow(cuts=[2, 4])._best(trials, facts(gpu=200))
    assert (offer.choice, offer.samples_s) == (ALL, 200)


def test_without_measured_loader_cpu_offloading_is_taken_to_be_free() -> None:
    offer = FastFlow()._best([local(cpu=0.0), remote(100, 0.5)], facts())
    assert offer.share == 0.5


@pytest.mark.parametrize(("measured", "pays"), [(104.9, False), (105.1, True)])
def test_the_check_must_gain_5_percent(measured: float, pays: bool) -> None:
    plan = FastFlow().decide([local(), remote(100), check(0.5, measured)], facts())
    assert plan.counts() == ({FILE: 500, ALL: 500} if pays else {FILE: 1000})


def test_a_candidate_on_every_sample_is_its_own_check() -> None:
    trials = [local(), remote(300, 0.005)]
    assert FastFlow().next_trial(trials, facts(gpu=200)) is None
    assert FastFlow().decide(trials, facts(gpu=200)).counts() == {ALL: 1000}


def test_what_promises_nothing_is_not_checked() -> None:
    trials = [local(), remote(50, 0.02)]  # 0 + 50 < 100
    assert FastFlow().next_trial(trials, facts()) is None
    assert "no candidate promises more" in FastFlow().decide(trials, facts()).reason


def test_undecided_means_local() -> None:
    policy = FastFlow()
    assert "no trial has been run" in policy.decide([], facts()).reason
    assert "has not been checked" in policy.decide([local(), remote(100)], facts()).reason
    assert policy.decide([local(), remote(100)], facts()).counts() == {FILE: 1000}


@pytest.mark.parametrize("known", [facts(samples=0), facts(max_cut=0)])
def test_nothing_to_offload_needs_no_trial(known: Facts) -> None:
    assert FastFlow().next_trial([], known) is None
    assert "there is nothing to offload" in FastFlow().decide([], known).reason


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_it_ends_with_few_samples(samples: int) -> None:
    policy, known = FastFlow(cuts=[2, 4]), facts(samples=samples)
    trials: list[Trial] = []
    while (plan := policy.next_trial(trials, known)) is not None:
        trials.append(Trial.of(plan, 100 + len(trials), 0.001))
        assert len(trials) <= 4
    assert policy.decide(trials, known).samples == samples


def test_cuts_are_checked() -> None:
    with pytest.raises(PlanError, match=r"cuts must be >= 1, got \[0, 2\]"):
        FastFlow([0, 2])
    with pytest.raises(PlanError, match=r"cuts must be <= max_cut = 4, got \[5\]"):
        FastFlow([5]).next_trial([], facts())
    with pytest.raises(PlanError, match=r"cuts must be numbers or 'every', got 'all'"):
        FastFlow("all")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((FILE, -0.1, 1, 1), "share must be in"),
        ((FILE, 0, 0, 1), "samples_s must be > 0 and finite, got 0"),
        ((FILE, 0, math.nan, 1), "samples_s must be > 0 and finite, got nan"),
        ((FILE, 0, 1, math.nan), "loader_cpu_s_per_sample must be >= 0 and finite, got nan"),
    ],
)
def test_trials_are_checked(values: Any, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        Trial(*values)


def test_a_trial_of_a_foreign_plan_is_refused() -> None:
    plan = Plan("x", (HALFWAY, ALL), np.array([0, 1], np.uint8), "")
    with pytest.raises(PlanError, match="must offload by one choice, got pixels@2, pixels@4"):
        Trial.of(plan, 1, 1)


def test_dry_plan_declines_where_all_off_makes_the_traffic_grow() -> None:
    """SOPHON's evaluation: on ImageNet, wire-bound, FastFlow offloads nothing."""
    plan = FastFlow().plan(facts_of(random_table(2000)))
    assert plan.counts() == {FILE: 2000}


def test_dry_plan_offloads_a_share_when_the_loaders_cpu_is_the_bottleneck() -> None:
    table = table_of([[1, 1]] * 900, [[0, 0.01]] * 900, [[0.01, 0]] * 900, (FILE, ALL))
    plan = FastFlow().plan(facts_of(table, Rates(1e9, 1e9, 1, 2)))
    assert plan.counts() == {FILE: 300, ALL: 600}  # the agent has twice the cores
    assert plan.predicted.seconds == pytest.approx(3.0)


def test_dry_plan_says_what_the_profile_lacks() -> None:
    plan = FastFlow([3]).plan(facts_of(random_table(20)))
    assert "the profile has no pixels@3" in plan.reason
