"""The windows of a policy that decides by trying plans out."""

from __future__ import annotations

import math

import pytest

from sophon_loader.decide.facts import FILE, Choice, Facts, Rates
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policies import NoOff
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policy import TryingPolicy
from sophon_loader.main.trials import TrialRunner

BATCH = 8
ALL = Choice(4, "pixels")


def facts(gpu_samples_s: float = math.inf, max_cut: int = 4) -> Facts:
    return Facts(400, Rates(gpu_samples_s, math.inf, 1.0, 1.0), None, max_cut, 2, 0.0)


def runner(lag: int = 3, steps: int = 5, **known: float) -> TrialRunner:
    return TrialRunner(FastFlow(trial_steps=steps), lambda: facts(**known), lag)  # type: ignore[arg-type]


def deliver(trials: TrialRunner, count: int, batch_s: float, cpu_s: float = 0.01) -> list[Plan | None]:
    return [trials.delivered(batch_s, BATCH, cpu_s * BATCH, BATCH) for _ in range(count)]


def test_only_fastflow_tries() -> None:
    assert isinstance(FastFlow(), TryingPolicy)
    assert not isinstance(NoOff(), TryingPolicy)


def test_the_first_window_is_local() -> None:
    trials = runner()
    assert not trials.done
    assert trials.plan.counts() == {FILE: 400}


@pytest.mark.parametrize("lag", [0, 1, 4])
@pytest.mark.parametrize("steps", [1, 5])
def test_a_window_is_full_after_the_lag_and_its_steps(lag: int, steps: int) -> None:
    trials = runner(lag, steps)
    assert deliver(trials, lag + steps - 1, 1.0) == [None] * (lag + steps - 1)
    plan = trials.delivered(1.0, BATCH, 0.01 * BATCH, BATCH)
    assert plan is not None and plan.counts() == {ALL: 400}
    assert trials.plan is plan


def test_batches_asked_for_under_the_old_plan_do_not_count() -> None:
    """Local 8/s, remote 80/s, while the batches of the lag are ten thousand times as slow as either."""
    trials = runner(lag=3, steps=5)
    deliver(trials, 3, 1e4)
    deliver(trials, 5, 1.0)
    deliver(trials, 3, 1e4)
    deliver(trials, 5, 0.1, cpu_s=0.0)
    local, remote = trials._trials
    assert local.choice == FILE and local.samples_s == pytest.approx(8)
    assert remote.choice == ALL and remote.samples_s == pytest.approx(80)
    assert remote.loader_cpu_s_per_sample == 0.0


def test_all_windows_up_to_the_decision() -> None:
    trials = runner(lag=1, steps=2)
    deliver(trials, 3, 1.0)  # local: 8/s
    deliver(trials, 3, 0.5, cpu_s=0.0)  # everything remote: 16/s, and no work left here
    assert not trials.done
    assert trials.plan.counts() == {FILE: 133, ALL: 267}, "the check at its share, 16 / (8 + 16)"
    (*none, final) = deliver(trials, 3, 0.3)
    assert none == [None, None] and trials.done
    assert final is not None and final.counts() == {FILE: 133, ALL: 267}
    assert "3.33 times as fast as local" in final.reason
    assert deliver(trials, 10, 1.0) == [None] * 10, "nothing changes any more"
    assert trials.plan.counts() == final.counts()


def test_a_check_that_does_not_pay_ends_in_no_offloading() -> None:
    trials = runner(lag=0, steps=2)
    deliver(trials, 2, 1.0)
    deliver(trials, 2, 0.5, cpu_s=0.0)
    deliver(trials, 2, 1.1)
    assert trials.done and trials.plan.counts() == {FILE: 400}


def test_a_gpu_that_is_slow_ends_the_trials_after_the_first() -> None:
    trials = runner(lag=0, steps=2, gpu_samples_s=9.0)
    assert deliver(trials, 2, 1.0)[-1] is not None
    assert trials.done
    assert trials.plan.counts() == {FILE: 400}
    assert "gpu / local is 1.12" in trials.plan.reason


def test_without_an_op_to_offload_there_is_nothing_to_try() -> None:
    trials = runner(max_cut=0)
    assert trials.done
    assert trials.plan.counts() == {FILE: 400}
    assert deliver(trials, 9, 1.0) == [None] * 9


def test_batches_that_take_no_time() -> None:
    trials = runner(lag=0, steps=2)
    assert deliver(trials, 2, 0.0)[-1] is not None


def test_cpu_seconds_are_those_of_the_window() -> None:
    """Whatever the epoch has used before: here ten thousand times as much per sample, in the batches of the lag."""
    trials = runner(lag=3, steps=5)
    deliver(trials, 8, 1.0, cpu_s=0.03)
    deliver(trials, 3, 1.0, cpu_s=300.0)
    deliver(trials, 5, 0.1, cpu_s=0.001)
    local, remote = trials._trials
    assert (local.loader_cpu_s_per_sample, remote.loader_cpu_s_per_sample) == pytest.approx((0.03, 0.001))


def test_cpu_seconds_count_for_the_samples_that_they_were_spent_on() -> None:
    """Workers are ahead of what is delivered, now by more and now by less."""
    trials = runner(lag=0, steps=2)
    trials.delivered(1.0, BATCH, 0.6, 60)
    trials.delivered(1.0, BATCH, 0.2, 20)
    (local,) = trials._trials
    assert local.loader_cpu_s_per_sample == pytest.approx(0.01)
