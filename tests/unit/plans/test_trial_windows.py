"""The windows of a policy that decides by trying plans out."""

from __future__ import annotations

import math

import pytest

from sophon_loader.decide.facts import FILE, Choice, Facts, Rates
from sophon_loader.decide.plan import Plan
from sophon_loader.decide.policies import NoOff
from sophon_loader.decide.policies.fastflow import FastFlow
from sophon_loader.decide.policy import Trial, TryingPolicy
from sophon_loader.plans.trial_windows import KeptTrials, TrialRunner

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


def test_the_first_batches_of_workers_that_have_just_started_do_not_count() -> None:
    trials = TrialRunner(FastFlow(trial_steps=5), facts, 3, warm=2)
    assert deliver(trials, 3 + 2, 1e4) == [None] * 5
    assert deliver(trials, 5, 1.0)[-1] is not None
    deliver(trials, 3, 1e4)
    deliver(trials, 5, 0.1)
    assert [trial.samples_s for trial in trials._trials] == pytest.approx([8, 80])


def test_all_windows_up_to_the_decision() -> None:
    trials = runner(lag=1, steps=2)
    deliver(trials, 3, 1.0)  # local: 8/s
    deliver(trials, 3, 0.5, cpu_s=0.0)  # everything remote: 16/s, and no work left here
    assert not trials.done
    assert trials.plan.counts() == {FILE: 133, ALL: 267}, "the check at its share, 16 / (8 + 16)"
    (*none, final) = deliver(trials, 3, 0.3)
    assert none == [None, None] and trials.done
    assert final is not None and final.counts() == {FILE: 133, ALL: 267}
    assert "3.33 times as fast as the local one" in final.reason
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
    assert "could take 1.12 times" in trials.plan.reason


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


def test_a_window_under_a_plan_that_is_far_slower_ends_early() -> None:
    """Local: 5 s for 5 batches. Remote takes 8 s a batch; 15 s are enough to know that."""
    trials = runner(lag=0, steps=5)
    deliver(trials, 5, 1.0)
    first, second = deliver(trials, 2, 8.0)
    assert first is None and second is not None and second.counts() == {FILE: 400}
    assert trials._trials[1].samples_s == pytest.approx(1.0)


# --- trials of an earlier run ---------------------------------------------------------------------------------

LOCAL, REMOTE, CHECK = Trial(FILE, 0.0, 8.0, 0.01), Trial(ALL, 1.0, 16.0, 0.0), Trial(ALL, 267 / 400, 26.0, 0.003)
KEPT = KeptTrials((LOCAL, REMOTE, CHECK), math.inf)


def again(kept: KeptTrials = KEPT, **known: float) -> TrialRunner:
    return TrialRunner(FastFlow(trial_steps=5), lambda: facts(**known), 3, kept)  # type: ignore[arg-type]


def test_what_was_found_is_followed_from_the_first_batch_on() -> None:
    trials = again()
    plan = trials.plan
    assert plan.counts() == {FILE: 133, ALL: 267} and not trials.done
    assert deliver(trials, 8, BATCH / 26.0) == [None] * 8
    assert trials.done and trials.tried_steps == 0 and trials.plan.counts() == plan.counts()


@pytest.mark.parametrize("samples_s", [26.0 / 1.4, 26.0 * 1.4], ids=["slower", "faster"])
def test_under_another_load_everything_is_tried_anew(samples_s: float) -> None:
    trials = again()
    *none, plan = deliver(trials, 16, BATCH / samples_s)
    assert none == [None] * 15 and plan is not None and plan.reason == "trial of the local pipeline"
    deliver(trials, 24, 1.0, cpu_s=0.0)
    assert trials.done and trials.tried_steps > 0


def test_one_window_that_is_off_is_no_proof() -> None:
    trials = again()
    assert deliver(trials, 8, 1.0) == [None] * 8 and not trials.done
    assert deliver(trials, 8, BATCH / 26.0) == [None] * 8
    assert trials.done and trials.tried_steps == 0


def test_under_another_model_everything_is_tried_anew() -> None:
    """Its step takes 20 samples/s, and the rate is what it was: the old one was a limit nowhere."""
    trials = again(gpu_samples_s=20.0)
    assert deliver(trials, 16, BATCH / 26.0)[-1] is not None


def test_a_step_that_limits_neither_then_nor_now_is_the_same() -> None:
    trials = again(KeptTrials(KEPT.trials, 1000.0), gpu_samples_s=100.0)
    assert deliver(trials, 8, BATCH / 26.0)[-1] is None and trials.done


def test_what_is_not_enough_for_the_policy_is_tried_anew() -> None:
    """Trials of a policy with other candidates, say."""
    trials = again(KeptTrials((LOCAL,), math.inf))
    assert trials.plan.reason == "trial of the local pipeline"


def test_a_job_that_the_gpu_limited_is_still_known_to() -> None:
    trials = again(KeptTrials((LOCAL,), 9.0), gpu_samples_s=9.0)
    assert trials.plan.counts() == {FILE: 400} and "could take 1.12 times" in trials.plan.reason
    assert deliver(trials, 8, 1.0)[-1] is None and trials.done and trials.tried_steps == 0


def test_only_what_is_complete_is_to_be_kept() -> None:
    trials = runner(lag=0, steps=2)
    for seconds in (1.0, 0.5, 0.3):
        assert trials.found is None
        deliver(trials, 2, seconds, cpu_s=0.01 if seconds == 1.0 else 0.0)
    assert trials.found is not None and len(trials.found.trials) == 3
    assert runner(max_cut=0).found is None
