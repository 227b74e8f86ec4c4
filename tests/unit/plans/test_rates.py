"""What an epoch says of the rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from sophon_loader.decide.facts import Rates
from sophon_loader.plans.probes import UpkeepCosts
from sophon_loader.plans.rates import EpochMeasure, revised

# --- what an epoch proves -------------------------------------------------------------------------------------

BEFORE = Rates(gpu_samples_s=math.inf, wire_bytes_s=10e6, loader_cores=2.0, agent_cores=4.0)
EPOCH = EpochMeasure(
    seconds=10.0,
    samples=1000,
    wire_bytes=50e6,
    loader_cpu_s=8.0,
    agent_cpu_s=6.0,
    gpu_samples_s=500.0,
    waiting=0.0,
    queueing=0.0,
)
SEEN = replace(BEFORE, gpu_samples_s=500.0)

IDLE = replace(SEEN, loader_cores=0.8)
"""The loader waited for nothing: what it did in these seconds is what it can."""
HELD_UP = {"gpu_samples_s": 120.0}
"""The training step takes 8.3 of the 10 seconds."""
WAITED = {"waiting": 0.8, "loader_cpu_s": 4.0}
"""The loader waited for 8 of the 10 seconds, and used its two cores in the others."""

CASES: dict[str, tuple[Rates, dict[str, Any], Rates]] = {
    "nothing held the loader up": (BEFORE, {}, IDLE),
    "it waited a little": (BEFORE, {"waiting": 0.2}, replace(SEEN, loader_cores=1.0)),
    "the training step held it up": (BEFORE, HELD_UP, replace(BEFORE, **HELD_UP)),
    "wire-bound: the wire ran at its rate": (BEFORE, WAITED, replace(SEEN, wire_bytes_s=5e6)),
    "it waited for a part, on a wire with room": (BEFORE, {"waiting": 0.5}, replace(SEEN, loader_cores=1.6)),
    "it waited for a part, on a wire near its limit": (
        BEFORE,
        {"waiting": 0.5, "wire_bytes": 95e6},
        replace(SEEN, loader_cores=1.6, wire_bytes_s=9.5e6),
    ),
    "wire-bound, never measured": (
        replace(BEFORE, wire_bytes_s=math.inf),
        WAITED,
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "agent-bound by queueing": (
        BEFORE,
        {**WAITED, "queueing": 0.9},
        replace(SEEN, agent_cores=0.6),
    ),
    "queueing without waiting is nobody's limit": (BEFORE, {"queueing": 0.9}, IDLE),
    "a look-ahead shorter than the way is nobody's limit": (BEFORE, {**WAITED, "starving": 0.75}, SEEN),
    "nor is it the agent's": (BEFORE, {**WAITED, "starving": 0.75, "queueing": 0.9}, SEEN),
    "loader-bound": (BEFORE, {"loader_cpu_s": 19.0, "waiting": 0.1}, replace(SEEN, loader_cores=19 / 9)),
    "a loader past its rate": (BEFORE, {"loader_cpu_s": 40.0}, replace(SEEN, loader_cores=4.0)),
    "a loader that waited is left alone": (BEFORE, {"waiting": 0.8, "loader_cpu_s": 1.0, "wire_bytes": 100e6}, SEEN),
    "the wire brought more than its rate allows": (
        BEFORE,
        {"wire_bytes": 200e6, **HELD_UP},
        replace(BEFORE, wire_bytes_s=20e6, **HELD_UP),
    ),
    "the agent did more than its rate allows": (
        BEFORE,
        {"agent_cpu_s": 80.0, **HELD_UP},
        replace(BEFORE, agent_cores=8.0, **HELD_UP),
    ),
    "too few steps to know what held it up": (BEFORE, {"gpu_samples_s": math.inf}, BEFORE),
    "an epoch of no samples": (BEFORE, {"samples": 0, "waiting": 1.0}, BEFORE),
    "an epoch of no time": (BEFORE, {"seconds": 0.0, "waiting": 1.0}, BEFORE),
    "nothing came over the wire": (BEFORE, {**WAITED, "wire_bytes": 0}, SEEN),
    "a loader whose clock stood still": (BEFORE, {"loader_cpu_s": 0.0}, SEEN),
    "queueing at an agent whose clock stood still": (
        BEFORE,
        {**WAITED, "agent_cpu_s": 0.0, "queueing": 0.9},
        SEEN,
    ),
    "the agent's seconds are not a number": (
        BEFORE,
        {**WAITED, "agent_cpu_s": math.nan, "queueing": 0.9},
        SEEN,
    ),
    "the queue's seconds are not a number": (
        BEFORE,
        {**WAITED, "queueing": math.nan},
        replace(SEEN, wire_bytes_s=5e6),
    ),
    "the agent's seconds are endless": (BEFORE, {"agent_cpu_s": math.inf, **HELD_UP}, replace(BEFORE, **HELD_UP)),
    "the agent's seconds are negative": (
        BEFORE,
        {**WAITED, "agent_cpu_s": -5.0, "queueing": 0.9},
        SEEN,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_an_epoch_says_of_the_rates(case: str) -> None:
    before, changes, after = CASES[case]
    found = revised(before, replace(EPOCH, **changes))
    for name in ("gpu_samples_s", "wire_bytes_s", "loader_cores", "agent_cores"):
        assert getattr(found, name) == pytest.approx(getattr(after, name)), name


def test_seconds_used_of_each_resource() -> None:
    assert EPOCH.used(SEEN) == {
        "gpu_samples_s": 2.0,
        "wire_bytes_s": 5.0,
        "loader_cores": 4.0,
        "agent_cores": 1.5,
    }
    endless = Rates(math.inf, math.inf, math.inf, math.inf)
    assert set(EPOCH.used(endless).values()) == {0.0}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"wire_bytes": 120e6}, "wire"),
        ({"agent_cpu_s": 50.0}, "agent-cpu"),
        ({"loader_cpu_s": 19.0}, "loader-cpu"),
        ({"gpu_samples_s": 120.0}, "gpu"),
    ],
)
def test_the_bottleneck_is_what_is_needed_longest(changes: dict[str, Any], name: str) -> None:
    epoch = replace(EPOCH, **changes)
    assert epoch.bottleneck(replace(BEFORE, gpu_samples_s=epoch.gpu_samples_s)) == name


# --- the agent's upkeep ---------------------------------------------------------------------------------------


def test_upkeep_that_is_not_known_is_taken_from_elsewhere() -> None:
    probed = UpkeepCosts(0.0, 0.003)
    assert UpkeepCosts().or_else(probed) == probed
    assert UpkeepCosts(0.001, 0.0).or_else(probed) == UpkeepCosts(0.001, 0.003)
    assert UpkeepCosts(0.001, 0.002).or_else(probed) == UpkeepCosts(0.001, 0.002)


def test_upkeep_of_some_samples() -> None:
    assert UpkeepCosts(0.001, 0.002).seconds(files=10, offloaded=5) == pytest.approx(0.02)


# --- what may rise without proof ------------------------------------------------------------------------------

LOW = replace(BEFORE, loader_cores=0.5, agent_cores=0.5)
"""As after a bad moment."""
BUSY_WIRE = {"waiting": 0.8, "loader_cpu_s": 1.6, "wire_bytes": 100e6, "agent_cpu_s": 3.0, "offloaded": 900}
"""An epoch that the wire limits, with 0.8 cores' worth of work in the loader's own time, and 0.3 at the agent."""

RISES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[float, float]]] = {
    "working time in an epoch that waited for long": ({}, {}, (0.8, 0.75)),
    "no more than the loader may use": ({"max_loader_cores": 0.6}, {}, (0.6, 0.75)),
    "working time, held up by the training step": ({}, {"waiting": 0.2, "loader_cpu_s": 5.6, **HELD_UP}, (0.7, 0.75)),
    "working time is no reason to lower it in such an epoch": ({}, {"loader_cpu_s": 0.2}, (0.5, 0.75)),
    "a loader that did nothing but wait": ({}, {"waiting": 1.0}, (0.5, 0.75)),
    "a loader that waited for longer than the epoch": ({}, {"waiting": 1.02}, (0.5, 0.75)),
    "the wait is not a number": ({}, {"waiting": math.nan}, (0.5, 0.75)),
    "no more than the agent offers": ({"offered_agent_cores": 0.6}, {}, (0.8, 0.6)),
    "an agent that now offers less than it has done": ({"offered_agent_cores": 0.2}, {}, (0.8, 0.5)),
    "nothing said of what the agent offers": ({"offered_agent_cores": 0.0}, {}, (0.8, 0.5)),
    "bolder": ({"growth": 3.0}, {}, (0.8, 1.5)),
    "nothing may rise": ({"may_rise": ()}, {}, (0.5, 0.5)),
    "it starts from what was shown": ({}, {"agent_cpu_s": 8.0}, (0.8, 1.2)),
    "samples wait for the agent for half of their time": ({}, {"queueing": 0.5}, (0.8, 0.5)),
    "the queue's seconds are not a number": ({}, {"queueing": math.nan}, (0.8, 0.5)),
    "they wait for the agent alone": ({}, {"queueing": 0.9}, (0.8, 0.3)),
}


@pytest.mark.parametrize("case", RISES)
def test_what_an_epoch_leaves_open_may_rise(case: str) -> None:
    arguments, changes, cores = RISES[case]
    found = revised(LOW, replace(EPOCH, **{**BUSY_WIRE, **changes}), **{"offered_agent_cores": 4.0, **arguments})
    assert (found.loader_cores, found.agent_cores) == pytest.approx(cores)
