"""The plan that lives: what it starts from, when it is revised, and how it comes through disturbances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Rates
from sophon_loader.decide.plan import Prices
from sophon_loader.decide.policies import Auto
from sophon_loader.decide.tariff import FILES, Tariff
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.main.live import (
    FIRST_WINDOW_S,
    LIKELY_WIRE_BYTES_S,
    MAX_RATIO,
    MIN_OFFERS,
    MIN_WINDOW_SAMPLES,
    TRIED_SHARE,
    WINDOW_S,
    LivePlan,
    at_first,
    shares_of,
)
from sophon_loader.profiling.live import Conditions
from sophon_loader.wire.messages import Offer
from sophon_loader.workers.counters import NO_TOTALS, Statistics, Totals
from tests.support.live_world import SETS, STEP_S, Truth, World

NAMES = tuple(dict.fromkeys((*encoding_names(), "roi-jpeg", "webp")))
SAMPLES = 100_000
FIRST = Conditions.at_first(loader_cores=1.0, agent_cores=1.0)
OFFERS = [Offer(0, "file", 100_000, 0.0, 0.004), Offer(2, "pixels", 10_000, 0.003, 0.001)]


def plan_of(
    conditions: Conditions = FIRST, processes: int = 1, files_here: bool = False, samples: int = SAMPLES
) -> tuple[LivePlan, Statistics]:
    statistics = Statistics(processes, NAMES)
    live = LivePlan(Auto(), samples, statistics, processes, NAMES, conditions, files_here=files_here)
    return live, statistics


def totals_of(samples: int = 100, **changed: Any) -> Totals:
    """A second of a loader that waits for the wire."""
    usual: dict[str, Any] = {
        "samples": samples, "wire_bytes": 10_000 * samples, "loader_cpu_s": 0.002 * samples, "busy_s": 0.002 * samples,
        "waited_s": 0.5, "offloaded": samples, "agent_cpu_s": 0.0033 * samples, "upkeep_s": 0.0002 * samples,
        "offloaded_upkeep_s": 0.0002 * samples, "work_cpu_s": 0.003 * samples, "work_s": 0.003 * samples,
        "read_bytes": 100_000 * samples, "read_s": 0.01, "fresh": 50, "net_s": 1.0,
    }  # fmt: skip
    return Totals(**(usual | changed))


def told(live: LivePlan) -> Tariff:
    """What the workers are told."""
    packed = live.shared.tariff.packed()
    assert packed
    return Tariff.from_plain(msgpack.unpackb(packed))


def weighed(live: LivePlan, samples: int = MIN_OFFERS) -> None:
    for _ in range(samples):
        live.shared.offers.write(0, OFFERS)


# --- at first -------------------------------------------------------------------------------------------------


def test_before_anything_is_known_all_resources_count_as_equally_scarce() -> None:
    (part,) = at_first(Rates(math.inf, math.inf, 2.0, 4.0), files_here=False).parts
    assert part.share == 1.0 and part.prices == Prices(wire=1 / LIKELY_WIRE_BYTES_S, loader=0.5, agent=0.25)
    (part,) = at_first(Rates(math.inf, 50e6, 2.0, 4.0), files_here=False).parts
    assert part.prices == Prices(wire=1 / 50e6, loader=0.5, agent=0.25), "the wire of an earlier run"


def test_files_that_are_read_here_are_not_offloaded_before_anything_is_known() -> None:
    assert at_first(FIRST.rates, files_here=True).parts == (FILES,)


def test_the_first_requests_already_go_out_at_prices() -> None:
    live, _ = plan_of()
    assert live.tariff.offloads and live.predicted_s is None and live.limits() == {}
    (part,) = told(live).parts
    assert part.prices is not None and max(vars(part.prices).values()) == 1.0


def test_prices_reach_the_workers_at_most_one_and_in_the_agent_s_seconds() -> None:
    live, statistics = plan_of()
    statistics.agent_cores.array[:] = 1.0
    weighed(live)
    live.progressed(1.0, totals_of(weighed=10, weighed_rest_s=0.01, weighed_loader_s=0.02), math.inf)
    ratio = live._loader_per_rest
    assert ratio == 1.5, "half way from 1 to 2"
    for shared, own in zip(told(live).parts, live.tariff.parts, strict=True):
        assert own.prices is not None and shared.prices is not None
        most = max(own.prices.wire, own.prices.loader * ratio, own.prices.agent)
        wanted = (own.prices.wire / most, own.prices.loader * ratio / most, own.prices.agent / most)
        assert (shared.prices.wire, shared.prices.loader, shared.prices.agent) == pytest.approx(wanted)


@pytest.mark.parametrize(("rest_s", "loader_s", "ratio"), [
    (1.0, 2.0, 2.0), (1.0, 0.5, 0.5), (1.0, 1e6, MAX_RATIO), (1e6, 1.0, 1 / MAX_RATIO), (1.0, 0.0, 1 / MAX_RATIO),
    (0.0, 1.0, 1.0),
])  # fmt: skip
def test_how_fast_a_core_here_is_compared_with_the_agent_s(rest_s: float, loader_s: float, ratio: float) -> None:
    live, _ = plan_of()
    totals = NO_TOTALS
    for second in range(1, 12):
        totals = replace(
            totals_of(100 * second), weighed=10 * second, weighed_rest_s=rest_s * second,
            weighed_loader_s=loader_s * second,
        )  # fmt: skip
        live.progressed(float(second), totals, math.inf)
    assert live._loader_per_rest == pytest.approx(ratio, rel=2e-3)


# --- windows --------------------------------------------------------------------------------------------------


def test_the_first_window_is_short_and_the_others_take_a_second() -> None:
    live, _ = plan_of()
    weighed(live)
    assert not live.progressed(FIRST_WINDOW_S - 0.01, totals_of(50), math.inf)
    assert live.progressed(FIRST_WINDOW_S, totals_of(60), math.inf)
    assert not live.progressed(FIRST_WINDOW_S + WINDOW_S - 0.01, totals_of(150), math.inf)
    assert live.progressed(FIRST_WINDOW_S + WINDOW_S, totals_of(160), math.inf)


def test_a_window_of_few_samples_waits_for_more_but_not_for_ever() -> None:
    live, _ = plan_of()
    weighed(live)
    few = totals_of(MIN_WINDOW_SAMPLES - 1)
    assert not live.progressed(1.0, few, math.inf)
    assert not live.progressed(4 * WINDOW_S - 0.01, few, math.inf)
    assert live.progressed(4 * WINDOW_S, few, math.inf)


def test_a_window_without_samples_leaves_conditions_as_they_are() -> None:
    live, _ = plan_of()
    weighed(live)
    live.progressed(1.0, totals_of(100), math.inf)
    before = live.conditions
    live.progressed(10.0, totals_of(100), math.inf)
    assert live.conditions == before


def test_too_few_offers_change_no_price() -> None:
    live, _ = plan_of()
    first = live.tariff
    weighed(live, MIN_OFFERS - 1)
    assert not live.progressed(1.0, totals_of(100), math.inf)
    assert live.tariff is first and live.limits() == {}
    assert live.conditions.rates.wire_bytes_s == 1e6, "what the window has shown is kept"
    weighed(live, 1)
    assert live.progressed(2.0, totals_of(200), math.inf) and live.limits() != {}


def test_another_iteration_begins_its_counters_from_nothing() -> None:
    live, _ = plan_of()
    weighed(live)
    live.progressed(1.0, totals_of(100), math.inf)
    live.progressed(2.0, totals_of(200), math.inf)
    known = live.conditions
    live.begin()
    assert live.conditions == known, "what was learnt goes on"
    assert live.progressed(FIRST_WINDOW_S, totals_of(100), math.inf)
    assert live.conditions.rates.wire_bytes_s == pytest.approx(1e6 / FIRST_WINDOW_S)


def test_the_prediction_is_for_the_whole_dataset() -> None:
    live, statistics = plan_of(samples=SAMPLES)
    statistics.agent_cores.array[:] = 1.0
    weighed(live, 20)
    live.progressed(1.0, totals_of(100), math.inf)
    assert live.tariff.predicted is not None
    assert live.predicted_s == pytest.approx(live.tariff.predicted.seconds * SAMPLES / 20)


def test_the_limits_are_shares_of_the_time_the_busiest_first() -> None:
    found = shares_of(EpochTime(gpu_s=1.0, wire_s=4.0, loader_cpu_s=2.0, agent_cpu_s=0.0), disk_s=3.0)
    assert list(found.items()) == [
        ("wire", 1.0), ("agent-disk", 0.75), ("loader-cpu", 0.5), ("gpu", 0.25), ("agent-cpu", 0.0),
    ]  # fmt: skip
    assert set(shares_of(EpochTime(0.0, 0.0, 0.0, 0.0)).values()) == {0.0}


def test_the_agent_s_cores_are_those_of_all_connections() -> None:
    live, statistics = plan_of(processes=2)
    statistics.agent_cores.array[:] = (0.5, 0.25)
    live.progressed(1.0, totals_of(100), math.inf)
    assert live.conditions.rates.agent_cores == pytest.approx(0.75)


def test_memory_does_not_grow_with_the_dataset() -> None:
    sizes = set()
    for samples in (1, 1000, 100_000_000):
        live, statistics = plan_of(samples=samples)
        arrays = [live.shared.offers._serial, live.shared.offers._kinds, live.shared.offers._costs]
        arrays += [live.shared.tariff._note._places, statistics._values]
        sizes.add(sum(one.array.nbytes for one in arrays))
    assert len(sizes) == 1 and sizes.pop() < 2 << 20


# --- nothing to gain ------------------------------------------------------------------------------------------


def test_while_nothing_is_offloaded_a_few_samples_are_still_tried() -> None:
    """So that it stays known what offloading would take."""
    live, _ = plan_of(files_here=True)
    files, priced = told(live).parts
    assert not live.tariff.offloads
    assert (files.share, files.prices) == (1 - TRIED_SHARE, None)
    assert priced.share == TRIED_SHARE and priced.prices is not None


def test_a_job_that_the_gpu_limits_offloads_nothing() -> None:
    live, statistics = plan_of()
    world = World(live, statistics, SETS["imagenet"])
    world.truth = Truth(gpu_samples_s=20.0)
    world.play(10)
    assert not live.tariff.offloads and next(iter(live.limits())) == "gpu"
    assert told(live).parts[1].share == TRIED_SHARE


def test_an_agent_on_this_host_and_nothing_to_gain() -> None:
    live, statistics = plan_of(files_here=True, conditions=Conditions.at_first(2.0, 1.0), processes=2)
    world = World(live, statistics, SETS["imagenet"], processes=2, files_here=True)
    world.truth = Truth(loader_cores=2.0, agent_cores=0.05)
    speeds = world.play(8)
    assert min(speeds[8:]) >= 0.97 * world.files_samples_s()


# --- a loader's life ------------------------------------------------------------------------------------------


def life(name: str, truth: Truth = Truth(), conditions: Conditions = FIRST) -> World:  # noqa: B008
    live, statistics = plan_of(conditions)
    world = World(live, statistics, SETS[name])
    world.truth = truth
    return world


every_set = pytest.mark.parametrize("name", SETS)
TRUTHS = {
    "a narrow wire": Truth(),
    "a very narrow wire": Truth(wire_bytes_s=2.5e6),
    "a wide wire": Truth(wire_bytes_s=125e6),
    "little of the agent": Truth(agent_cores=0.05),
    "much of the agent": Truth(agent_cores=8.0),
    "slow cores here": Truth(per_rest=2.0),
    "quick cores here": Truth(per_rest=0.5),
    "another program at the agent": Truth(agent_share=0.4),
    "little of a core here": Truth(loader_cores=0.4, wire_bytes_s=50e6),
}


@every_set
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_it_comes_near_the_best_that_there_is_within_seconds(name: str, truth: Truth) -> None:
    world = life(name, truth)
    speeds = world.play(12)
    best = world.best_samples_s()
    assert np.mean(speeds[-16:]) >= 0.95 * best
    assert np.mean(speeds[:4]) >= 0.5 * min(best, max(world.files_samples_s(), 1.0)), "and is no disaster before"


@every_set
@pytest.mark.parametrize("truth", TRUTHS.values(), ids=TRUTHS)
def test_what_limits_is_said_after_a_second(name: str, truth: Truth) -> None:
    world = life(name, truth)
    world.play(1)
    assert world.live.limits() and world.live.predicted_s
    world.play(9)
    limits = world.live.limits()
    assert next(iter(limits.values())) == 1.0 and list(limits.values()) == sorted(limits.values(), reverse=True)


def test_it_is_revised_every_second_from_the_first_quarter_on() -> None:
    world = life("imagenet")
    world.play(6)
    gaps = np.diff(world.revised)
    assert world.revised[0] <= 1.0 and set(gaps.tolist()) == {WINDOW_S}


DISTURBANCES: dict[str, list[dict[str, Any]]] = {
    "link 100 -> 20 -> 200 Mbit/s": [{"wire_bytes_s": 2.5e6}, {"wire_bytes_s": 25e6}],
    "agent quota 1 -> 0.05 -> 1": [{"agent_cores": 0.05}, {"agent_cores": 1.0}],
    "another program on the loader's core": [{"loader_cores": 0.5}, {"loader_cores": 1.0}],
    "another program on the agent's core": [{"agent_share": 0.5}, {"agent_share": 1.0}],
    "a starved agent": [{"agent_share": 0.01}, {"agent_share": 1.0}],
    "a slow training step": [{"gpu_samples_s": 13.0}, {"gpu_samples_s": math.inf}],
    "a second job": [{"agent_cores": 0.5, "wire_bytes_s": 6.25e6}, {"agent_cores": 1.0, "wire_bytes_s": 12.5e6}],
}


@every_set
@pytest.mark.parametrize(
    ("change", "for_s"), [*((name, 15) for name in DISTURBANCES), ("a slow training step", 90), ("a starved agent", 60)]
)
def test_ten_seconds_after_a_change_it_is_as_good_as_one_that_starts_then(
    name: str, change: str, for_s: int
) -> None:
    world = life(name)
    world.play(20)
    for changed in DISTURBANCES[change]:
        world.truth = replace(world.truth, **changed)
        world.play(10)
        fresh = life(name, world.truth)
        fresh.play(10)
        assert np.mean(world.play(4)) >= 0.95 * np.mean(fresh.play(4)), changed
        world.play(for_s - 14)


@every_set
def test_undisturbed_it_stays_as_it_is(name: str) -> None:
    """Over a minute, 5 s at a time."""
    world = life(name)
    world.play(10)
    speeds = np.array(world.play(60)).reshape(-1, round(5 / STEP_S)).mean(axis=1)
    assert speeds.std() <= 0.05 * speeds.mean() and speeds.min() >= 0.95 * world.best_samples_s()
