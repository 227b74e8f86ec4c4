"""What a run learns from its epochs: rates that move and come back, loads, the overhead."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Rates
from sophon_loader.plans.learnt import MIN_COUNTED, Bounds, Learnt
from sophon_loader.plans.probes import UpkeepCosts
from sophon_loader.plans.rates import EpochMeasure

SAMPLES = 32
PLANNED = EpochTime(gpu_s=0.0, wire_s=1.0, loader_cpu_s=2.0, agent_cpu_s=2.0)
"""What a plan says of an epoch at one core on either side."""


def nothing(**changes: Any) -> Learnt:
    return Learnt.nothing(Bounds(**{"loader_cores": 1.0, "agent_cores": 1.0, "samples": SAMPLES} | changes))


def epoch(**changes: Any) -> EpochMeasure:
    values = {"seconds": 10.0, "samples": SAMPLES, "wire_bytes": 30e3, "loader_cpu_s": 0.06, "agent_cpu_s": 0.01}
    return EpochMeasure(**(values | {"gpu_samples_s": 100.0, "waiting": 0.9, "queueing": 0.0} | changes))


def after(learnt: Learnt, planned: EpochTime | None = None, **changes: Any) -> Learnt:
    return learnt.after(epoch(**changes), planned, UpkeepCosts())


# --- the beginning --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("offered", "cores"), [(2.0, 2.0), (0.0, 1e-3), (None, math.inf)])
def test_at_first_there_is_no_limit_but_cores(offered: float | None, cores: float) -> None:
    learnt = nothing(loader_cores=3.0, agent_cores=offered)
    assert learnt.rates == learnt.planning_rates == Rates(math.inf, math.inf, 3.0, cores)
    assert not learnt.knows_wire


def test_other_processes_have_other_cores() -> None:
    learnt = after(nothing(), waiting=0.0, loader_cpu_s=5.0).resized(4.0)
    assert learnt.rates.loader_cores == learnt.bounds.loader_cores == 4.0
    assert learnt.rates.wire_bytes_s == after(nothing(), waiting=0.0, loader_cpu_s=5.0).rates.wire_bytes_s


def test_an_epoch_of_nothing_changes_no_rate() -> None:
    learnt = after(nothing())
    assert after(learnt, samples=0).rates == learnt.rates
    assert after(learnt, seconds=0.0).rates == learnt.rates


# --- the wire -------------------------------------------------------------------------------------------------


def test_a_wire_that_has_become_faster_is_measured_again() -> None:
    learnt = nothing().after_burst(1e6)
    assert learnt.knows_wire and learnt.rates.wire_bytes_s == 1e6
    learnt = after(learnt, seconds=1.0, wire_bytes=2e6, waiting=0.1)
    assert not learnt.knows_wire and learnt.rates.wire_bytes_s == 2e6
    learnt = learnt.after_burst(9e6)
    assert learnt.knows_wire and learnt.rates.wire_bytes_s == 9e6
    learnt = after(learnt, seconds=1.0, wire_bytes=1e7, waiting=0.1).after_burst(1e5)
    assert learnt.rates.wire_bytes_s == 1e7, "a burst that gets less than an epoch got says nothing"


def test_a_burst_that_nobody_answers_says_nothing() -> None:
    assert nothing().after_burst(None) == nothing()
    learnt = after(nothing().after_burst(1e6), seconds=1.0, wire_bytes=2e6, waiting=0.1)
    assert learnt.after_burst(None).knows_wire, "until an epoch shows again that it may be faster"


def test_a_wire_that_came_down_is_measured_again_until_it_is_back() -> None:
    """After an epoch that blamed the wire, the plan sends so little that no epoch shows it to be faster."""
    by_agent: dict[str, Any] = {"wire_bytes": 23e6, "waiting": 0.5, "queueing": 0.9, "agent_cpu_s": 9.0}
    learnt = after(nothing(), wire_bytes=120e6)
    assert learnt.knows_wire and learnt.rates.wire_bytes_s == pytest.approx(12e6)
    learnt = after(learnt, wire_bytes=24e6, queueing=0.7)
    due = []
    for number in range(40):
        assert learnt.rates.wire_bytes_s == pytest.approx(2.4e6)
        if not learnt.knows_wire:
            due.append(number)
            learnt = learnt.after_burst(1e6)
        learnt = after(learnt, **by_agent)
    assert due == [0, 2, 5, 10, 19, 36]
    bursts = 0
    while bursts < 20 and learnt.rates.wire_bytes_s < 11e6:
        bursts += 1
        if not learnt.knows_wire:
            learnt = learnt.after_burst(11.9e6)
        learnt = after(learnt, **by_agent)
    assert learnt.knows_wire and learnt.rates.wire_bytes_s == pytest.approx(11.9e6)
    assert not after(learnt, wire_bytes=24e6, queueing=0.7).knows_wire, "the next time it is measured at once"


@pytest.mark.parametrize("nbytes", [110e6, 120e6, 130e6])
def test_a_wire_that_is_as_it_was_is_not_measured_again(nbytes: float) -> None:
    assert after(after(nothing(), wire_bytes=120e6), wire_bytes=nbytes).knows_wire


# --- cores ----------------------------------------------------------------------------------------------------


def test_the_agent_s_cores_come_back_to_what_it_offers() -> None:
    learnt = after(nothing(agent_cores=2.0), queueing=0.9, agent_cpu_s=10.0)
    seen = [learnt.rates.agent_cores]
    for _ in range(2):
        learnt = after(learnt, PLANNED, agent_cpu_s=4.0)
        seen.append(learnt.rates.agent_cores)
    assert seen == pytest.approx([1.0, 1.5, 2.0])


def test_the_loader_s_cores_come_back_in_epochs_that_wait_for_long() -> None:
    learnt = after(nothing(), waiting=0.0, loader_cpu_s=5.0)
    assert learnt.rates.loader_cores == pytest.approx(0.5)
    assert after(learnt, waiting=0.8, loader_cpu_s=1.9).rates.loader_cores == pytest.approx(0.95)


# --- used and planned CPU seconds -----------------------------------------------------------------------------


def loads(agent_s: list[float]) -> list[float]:
    """The agent's load after epochs that took so many of its CPU seconds, 2 being planned."""
    learnt, seen = nothing(), []
    for used_s in agent_s:
        learnt = replace(learnt, rates=Rates(math.inf, math.inf, 1.0, 1.0))
        planned = PLANNED.at(learnt.rates, learnt.planning_rates)
        # What is planned stays 2 CPU seconds: a load is no part of the work.
        assert planned.agent_cpu_s * learnt.planning_rates.agent_cores == pytest.approx(2.0)
        learnt = after(learnt, planned, offloaded=SAMPLES if used_s else 0, agent_cpu_s=used_s, queueing=0.6)
        seen.append(learnt.agent_load or 1.0)
    return seen


@pytest.mark.parametrize(
    ("agent_s", "expected"),
    [
        ([2.2, 2.2, 2.0], [1.1, 1.1, 1.1**0.5]),  # an error of the model, learnt and averaged
        ([2.0, 8.0, 2.0], [1.0, 2.0, 1.0]),  # a disturbed epoch, and the next one
        ([8.0, 2.2], [4.0, 1.1]),
        ([80.0, 2.0], [4.0, 1.0]),
        ([8.0, 0.0, 0.0, 0.0, 0.0], [4.0, 2.0, 2**0.5, 2**0.25, 2**0.25]),  # nothing offloaded that could show it
        ([2.4, 0.0, 0.0], [1.2, 1.2, 1.2]),  # what a model may err by is kept
        ([1.6, 0.0], [0.8, 0.8]),
    ],
)
def test_a_load_learnt_from_a_disturbed_epoch_is_forgotten(agent_s: list[float], expected: list[float]) -> None:
    assert loads(agent_s) == pytest.approx(expected)


def test_the_loader_s_load_divides_its_cores() -> None:
    learnt = after(nothing(), PLANNED, waiting=0.7, loader_cpu_s=3.0)
    assert learnt.loader_load == pytest.approx(1.5)
    assert learnt.planning_rates.loader_cores == pytest.approx(learnt.rates.loader_cores / 1.5)


@pytest.mark.parametrize(
    ("planned", "samples"), [(None, SAMPLES), (PLANNED, MIN_COUNTED - 1)], ids=["no plan", "too few samples"]
)
def test_what_says_nothing_of_the_model(planned: EpochTime | None, samples: int) -> None:
    learnt = after(nothing(), planned, samples=samples, loader_cpu_s=3.0, agent_cpu_s=3.0, offloaded=samples)
    assert learnt.loader_load is None and learnt.agent_load is None


def test_a_part_of_the_samples_is_compared_with_its_share() -> None:
    half = after(nothing(), PLANNED, samples=SAMPLES // 2, loader_cpu_s=1.0, agent_cpu_s=1.5, offloaded=SAMPLES // 2)
    assert (half.loader_load, half.agent_load) == pytest.approx((1.0, 1.5))


def test_upkeep_that_the_plan_did_not_know_is_no_load() -> None:
    upkeep_s = UpkeepCosts(0.0, 0.5 / SAMPLES)
    learnt = after(nothing(), PLANNED, agent_cpu_s=2.5, offloaded=SAMPLES, upkeep_s=upkeep_s)
    assert learnt.agent_load == pytest.approx(1.0)
    assert learnt.known_upkeep_s(UpkeepCosts(0.1, 0.2)) == (0.1, 0.5 / SAMPLES), (
        "dry runs tell what epochs have not shown"
    )


def test_an_epoch_of_hardly_more_than_upkeep_says_nothing_of_ops() -> None:
    upkeep_s = UpkeepCosts(0.0, 0.2 / SAMPLES)
    assert after(nothing(), PLANNED, agent_cpu_s=0.3, offloaded=SAMPLES, upkeep_s=upkeep_s).agent_load is None


# --- the overhead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ops_s", "overhead_s"), [(0.006, 0.004), (0.02, 0.0), (None, 0.0)])
def test_the_overhead_is_what_ops_do_not_explain(ops_s: float | None, overhead_s: float) -> None:
    learnt = nothing().after(epoch(loader_cpu_s=0.01 * SAMPLES), None, UpkeepCosts(), ops_s)
    assert learnt.overhead_s == pytest.approx(overhead_s)


def test_an_epoch_of_no_samples_says_nothing_of_the_overhead() -> None:
    assert nothing().after(epoch(samples=0), None, UpkeepCosts(), 0.001).overhead_s == 0.0
