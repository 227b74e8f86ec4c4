"""How rates come back: which rise without proof, how often that is tried, and when the wire is measured again."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.decide.facts import Rates
from sophon_loader.plans.healing import Healing, Retry, wire_may_do_more
from sophon_loader.plans.rates import EpochMeasure, revised

LOW = Rates(gpu_samples_s=500.0, wire_bytes_s=10e6, loader_cores=0.5, agent_cores=0.5)
"""As after a bad moment."""
BUSY_WIRE = EpochMeasure(
    seconds=10.0,
    samples=1000,
    wire_bytes=100e6,
    loader_cpu_s=1.6,
    agent_cpu_s=3.0,
    gpu_samples_s=500.0,
    waiting=0.8,
    queueing=0.0,
    offloaded=900,
)
"""An epoch that the wire limits, with 0.8 cores' worth of work in the loader's own time, and 0.3 at the agent."""


def healed(rates: Rates, healing: Healing, planned: bool = True, **changes: Any) -> tuple[Rates, Healing]:
    """After one more epoch."""
    return healing.after(rates, replace(BUSY_WIRE, **changes), 1.0, 1.0, planned=planned)


def test_from_a_hundredth_of_the_agent_s_cores_to_all_in_three_unhindered_epochs() -> None:
    rates, healing = replace(LOW, agent_cores=0.01), Healing()
    seen = []
    for _ in range(3):  # each makes use of what the plan counts on
        rates, healing = healed(rates, healing, agent_cpu_s=9.0 * rates.agent_cores)
        seen.append(rates.agent_cores)
    assert seen == pytest.approx([0.03, 0.18, 1.0])


def test_what_is_not_put_to_the_test_grows_by_half_and_no_faster() -> None:
    rates, healing = replace(LOW, agent_cores=0.01), Healing()
    for number in range(1, 6):
        rates, healing = healed(rates, healing, agent_cpu_s=0.0)
        assert rates.agent_cores == pytest.approx(0.01 * 1.5**number)


@pytest.mark.parametrize("used", [0.0, 0.9])
def test_while_nothing_may_be_offloaded_it_rises_once(used: float) -> None:
    rates, healing = replace(LOW, agent_cores=0.01), Healing()
    rates, healing = healed(rates, healing, planned=False, agent_cpu_s=10 * used * rates.agent_cores)
    first = rates
    assert 0.01 < first.agent_cores <= 0.03
    for _ in range(20):
        rates, healing = healed(rates, healing, planned=False, agent_cpu_s=0.0)
    assert rates.agent_cores == first.agent_cores
    rates, _ = healed(rates, healing, agent_cpu_s=0.0)
    assert rates.agent_cores > first.agent_cores


def test_an_agent_that_cannot_do_more_is_tried_more_and_more_seldom() -> None:
    """It offers 1 core and has half of one."""
    rates, healing, trials, cores = LOW, Healing(), [], []
    for number in range(100):
        if rates.agent_cores > 0.55:
            trials.append(number)
            cores.append(rates.agent_cores)
            rates, healing = healed(rates, healing, agent_cpu_s=5.0, queueing=0.95)
        else:
            rates, healing = healed(rates, healing, agent_cpu_s=4.9)
    assert trials == [1, 3, 6, 11, 20, 37, 54, 71, 88]
    assert cores == pytest.approx([1.0] + 8 * [0.75]), "bold only at first"


def test_a_loader_that_only_looks_faster_when_it_sleeps_is_tried_more_and_more_seldom() -> None:
    """Something else takes half of its core; a worker that mostly sleeps gets all of it when it wakes up."""
    rates, healing, trials = LOW, Healing(), []
    for number in range(60):
        if rates.loader_cores > 0.55:
            trials.append(number)
            rates, healing = healed(rates, healing, waiting=0.1, loader_cpu_s=4.5)
        else:
            rates, healing = healed(rates, healing, waiting=0.7, loader_cpu_s=2.9)
    assert trials == [1, 3, 6, 11, 20, 37, 54]


def test_a_resource_that_has_come_back_is_tried_at_once_the_next_time() -> None:
    rates, healing, failed = LOW, Healing(), 0
    for _ in range(20):  # it really has no more
        if rates.agent_cores < 0.7:
            rates, healing = healed(rates, healing, agent_cpu_s=4.9)
        else:
            rates, healing = healed(rates, healing, agent_cpu_s=5.0, queueing=0.95)
            failed += 1
    assert failed == 4
    for _ in range(20):
        rates, healing = healed(rates, healing, agent_cpu_s=9.0 * rates.agent_cores)
    assert rates.agent_cores == pytest.approx(1.0)
    rates, healing = healed(rates, healing, agent_cpu_s=5.0, queueing=0.95)  # another bad moment
    assert rates.agent_cores == pytest.approx(0.5)
    rates, healing = healed(rates, healing, agent_cpu_s=4.5)
    assert rates.agent_cores == pytest.approx(1.0), "at once"


# --- the wire -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "changes", "more"),
    [
        (10e6, {"wire_bytes": 120e6}, True),
        (10e6, {"wire_bytes": 105e6}, False),
        (10e6, {"wire_bytes": 120e6, "waiting": 0.5}, True),
        (10e6, {"wire_bytes": 120e6, "waiting": 0.8}, False),  # then that is its rate
        (10e6, {"wire_bytes": 120e6, "waiting": 0.8, "starving": 0.7}, True),
        (math.inf, {"wire_bytes": 120e6}, False),  # measured in any case
        (10e6, {"wire_bytes": 0}, False),
    ],
)
def test_a_wire_that_did_more_than_was_known_may_do_more_still(
    known: float, changes: dict[str, Any], more: bool
) -> None:
    before, epoch = replace(LOW, wire_bytes_s=known), replace(BUSY_WIRE, **{"waiting": 0.0, **changes})
    assert wire_may_do_more(before, revised(before, epoch), epoch) is more


def test_a_retry_waits_longer_each_time() -> None:
    retry, waits = Retry(), []
    assert retry.due
    for _ in range(7):
        retry = retry.failed()
        waits.append(0)
        while not retry.due:
            retry = retry.passed()
            waits[-1] += 1
    assert waits == [1, 2, 4, 8, 16, 16, 16]
    retry = retry.succeeded()
    assert retry.fresh
    retry = retry.failed()
    assert not retry.due and retry.passed().due, "the waits start anew"
