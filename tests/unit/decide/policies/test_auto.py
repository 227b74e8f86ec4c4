"""decide/policies/auto.py: near the linear optimum, never worse than the others, idle where idling is best."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sophon_loader.decide import (
    FILE,
    POLICIES,
    Choice,
    ChoiceTable,
    Prices,
    Rates,
    epoch_time,
    epoch_work,
    policy_named,
)
from sophon_loader.decide.dual import Problem, file_column, least_time
from sophon_loader.decide.policies import auto as module
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.errors import PlanError
from tests.support.decide_tables import JOBS, WIRE_BOUND, facts_of, linear_optimum, random_table, table_of

INF = math.inf
PIXELS = Choice(2, "pixels")
every_job = pytest.mark.parametrize("job", JOBS)


@every_job
@pytest.mark.parametrize("samples", [100, 1000, 4000])
def test_the_epoch_is_within_half_a_percent_of_the_linear_optimum(job: str, samples: int) -> None:
    table = random_table(samples, seed=samples)
    plan = Auto(slack=0).plan(facts_of(table, JOBS[job]))
    assert plan.predicted.seconds <= 1.005 * linear_optimum(table, JOBS[job])


@every_job
def test_the_default_gives_up_to_one_percent_of_time_for_traffic(job: str) -> None:
    table = random_table(3000, seed=9)
    exact, default = (policy.plan(facts_of(table, JOBS[job])) for policy in (Auto(slack=0), Auto()))
    assert default.predicted.seconds <= 1.01 * linear_optimum(table, JOBS[job]) * (1 + 1e-5)
    traffic = [epoch_work(table, plan.chosen).wire_bytes for plan in (exact, default)]
    assert traffic[1] <= traffic[0] * (1 + 1e-3)


@every_job
@pytest.mark.parametrize("samples", [1, 2, 3, 10, 100, 3000])
def test_never_more_than_the_slack_behind_another_policy(job: str, samples: int) -> None:
    facts = facts_of(random_table(samples, seed=samples + 1), JOBS[job])
    times = {name: POLICIES[name]().plan(facts).predicted.seconds for name in POLICIES}
    assert times["auto"] <= 1.01 * min(times.values()) * (1 + 1e-6)


def test_when_rounding_misses_other_plans_step_in() -> None:
    """Three samples of costs that differ by a million: rounding and its repair alone end at 29.6 s."""
    wire = [[0, 1, 1e6, INF], [1, 1e6, 5, 5], [1, 0, 1e6, 1000]]
    agent = [[1, 1000, 1, 0], [5, 1e6, 1, 0], [0, 0, 0, 1000]]
    loader = [[1, 5, 0, 0], [1, 1e6, 1, 1e6], [1000, 5, 1, 1000]]
    facts = facts_of(table_of(wire, agent, loader), Rates(INF, INF, 0.1012, 32.43))
    best = policy_named("resize-off").plan(facts).predicted.seconds
    assert best == pytest.approx(19.76, abs=0.01)
    assert Auto(slack=0).plan(facts).predicted.seconds <= best


@every_job
def test_above_the_sample_sizes_the_plan_fits_the_whole(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted by size, and one giant: what an even sample of the data set does not know."""
    monkeypatch.setattr(module, "LEVELS", (512, 4096))
    table = random_table(40_000, seed=2)
    order = np.argsort(table.wire_bytes[:, 0])
    wire, agent, loader = (a[order].copy() for a in (table.wire_bytes, table.agent_s, table.loader_s))
    wire[1, 0] *= 1e4
    facts = facts_of(ChoiceTable(table.choices, wire, agent, loader), JOBS[job])
    problem = Problem.of(facts)
    best = least_time(problem, [file_column(problem)], 1e-6, 300).lower
    assert Auto().plan(facts).predicted.seconds <= 1.01 * best * (1 + 1e-6)
    assert Auto(slack=0).plan(facts).predicted.seconds <= 1.001 * best


@every_job
@pytest.mark.parametrize("samples", [100, 1000])
def test_files_that_need_no_wire_do_not_make_traffic_outweigh_time(job: str, samples: int) -> None:
    """As with agent="local": the files are read by the loader itself."""
    table = random_table(samples, seed=samples)
    wire = table.wire_bytes.copy()
    wire[:, 0] = 0
    table = ChoiceTable(table.choices, wire, table.agent_s, table.loader_s)
    best_s = linear_optimum(table, JOBS[job])
    for slack, most in ((0.0, 1.005), (0.01, 1.01 * (1 + 1e-5))):
        assert Auto(slack).plan(facts_of(table, JOBS[job])).predicted.seconds <= most * best_s


def test_gpu_bound_jobs_are_left_alone() -> None:
    plan = Auto().plan(facts_of(random_table(100), Rates(1, 1e9, 8, 8)))
    assert plan.counts() == {FILE: 100}
    assert "gpu-bound" in plan.reason and "nothing is offloaded" in plan.reason
    assert plan.prices == Prices(0, 0, 0)


@pytest.mark.parametrize(("saved", "offloads"), [(0.5, False), (2.0, True)])
def test_a_gain_within_the_slack_is_no_reason_to_offload(saved: float, offloads: bool) -> None:
    table = table_of([[1e6, 1e6 * (1 - saved / 100)]] * 200, [[0, 1e-4]] * 200, choices=(FILE, PIXELS))
    plan = Auto().plan(facts_of(table))
    assert (plan.counts() != {FILE: 200}) is offloads


def test_when_no_choice_helps_nothing_is_offloaded() -> None:
    table = table_of([[100, 200]] * 50, [[0, 1]] * 50, [[1, 2]] * 50, (FILE, PIXELS))
    assert Auto().plan(facts_of(table, Rates(1e9, 1, 1, 1))).counts() == {FILE: 50}


def test_of_equal_traffic_the_least_agent_cpu_and_then_loader_cpu() -> None:
    choices = (FILE, Choice(2, "a"), Choice(2, "b"), Choice(2, "c"))
    table = table_of([[1e6, 1e5, 1e5, 1e5]] * 150, [[0, 3e-3, 1e-3, 1e-3]] * 150, [[0, 0, 2e-3, 1e-3]] * 150, choices)
    assert Auto().plan(facts_of(table)).counts() == {choices[3]: 150}


def test_one_byte_does_not_outweigh_much_cpu() -> None:
    choices = (FILE, Choice(2, "slow"), Choice(2, "fast"))
    table = table_of([[1e6, 70_000, 70_010]] * 150, [[0, 9e-3, 1e-3]] * 150, choices=choices)
    assert Auto().plan(facts_of(table)).counts() == {choices[2]: 150}


def test_a_cpu_bound_loader_is_relieved() -> None:
    table = table_of([[100, 100]] * 300, [[0, 0.01]] * 300, [[0.01, 0]] * 300, (FILE, PIXELS))
    plan = Auto(slack=0).plan(facts_of(table, Rates(1e9, 1e9, 1, 2)))
    assert plan.predicted.seconds == pytest.approx(1.0, rel=5e-3)
    assert plan.counts() == {FILE: 100, PIXELS: 200}


def test_sophon_is_the_special_case_of_two_choices_and_one_price() -> None:
    table = random_table(2000, seed=4, absent=0)
    two = ChoiceTable(
        table.choices[::2][:2], *(a[:, [0, 2]] for a in (table.wire_bytes, table.agent_s, table.loader_s))
    )
    facts = facts_of(two, Rates(1e9, 60e6, INF, 0.1))
    ours, theirs = (policy.plan(facts) for policy in (Auto(slack=0), policy_named("sophon")))
    assert np.mean(ours.chosen != theirs.chosen) < 0.005
    assert ours.predicted.seconds == pytest.approx(theirs.predicted.seconds, rel=1e-3)


@every_job
@pytest.mark.parametrize("samples", [2000, 40_000])
def test_choosing_again_at_the_prices_changes_next_to_nothing(
    job: str, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEVELS", (512, 4096))
    table = random_table(samples, seed=6)
    facts = facts_of(table, JOBS[job])
    plan = Auto().plan(facts)
    costs = table.wire_bytes, table.agent_s, table.loader_s
    again = plan.prices.cheapest_each(*costs, planned=plan.chosen)
    assert np.mean(again != plan.chosen) < 0.005
    assert epoch_time(table, again, facts.rates).seconds <= 1.01 * plan.predicted.seconds


@every_job
def test_the_bill_at_the_prices_is_the_predicted_time(job: str) -> None:
    table = random_table(500, seed=7)
    plan = Auto().plan(facts_of(table, JOBS[job]))
    work = epoch_work(table, plan.chosen)
    bill = plan.prices.wire * work.wire_bytes
    bill += plan.prices.loader * work.loader_s + plan.prices.agent * work.agent_s
    assert bill == pytest.approx(plan.predicted.seconds if plan.prices.wire else 0.0)


def test_one_sample() -> None:
    table = table_of([[1e6, 1e3]], [[0, 1e-3]], choices=(FILE, PIXELS))
    plan = Auto().plan(facts_of(table))
    assert plan.counts() == {PIXELS: 1}
    assert Auto().plan(facts_of(table_of([[1e3, 1e6]], [[0, 1e-3]], choices=(FILE, PIXELS)))).counts() == {FILE: 1}


def test_equal_samples_are_shared_out() -> None:
    """Unprofiled samples all carry the column means: they tie at any prices."""
    table = table_of([[100_000, 50_000]] * 5000, [[0, 1e-3]] * 5000, choices=(FILE, PIXELS))
    rates = Rates(1e9, 60e6, INF, 1)
    plan = Auto(slack=0).plan(facts_of(table, rates))
    assert plan.predicted.seconds <= 1.005 * linear_optimum(table, rates)
    assert len(plan.counts()) == 2


def test_an_epoch_can_cost_no_time_at_all() -> None:
    table = table_of([[100, 0]] * 3, [[0, 1]] * 3, choices=(FILE, PIXELS))
    plan = Auto().plan(facts_of(table, Rates(INF, 1, INF, INF)))
    assert plan.predicted.seconds == 0


def test_the_reason_tells_both_bottlenecks() -> None:
    reason = Auto().plan(facts_of(random_table(1000), WIRE_BOUND)).reason
    assert reason.startswith("wire-bound at ") and "of the files' bytes" in reason


@pytest.mark.parametrize("slack", [-0.1, 1.1, math.nan])
def test_slack_is_checked(slack: float) -> None:
    with pytest.raises(PlanError, match=r"slack must be in \[0, 1\]"):
        Auto(slack)
