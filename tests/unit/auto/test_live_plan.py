"""The plan that lives: what it starts from, when it is revised, and what it tells. Whole runs: test_live_runs.py."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from sophon_loader.auto.conditions import DOUBTED_FOR, HELD_FIRST, LIKELY_WIRE_BYTES_S, Conditions
from sophon_loader.auto.corrections import (
    AGENT_S_PER_BYTE,
    COMPARED_FROM_S,
    KNOWN_FROM_S,
    LOADER_S_PER_BYTE,
    MAX_RATIO,
    CostCorrections,
)
from sophon_loader.auto.live_plan import (
    FIRST_TRIED_SHARE,
    FIRST_WINDOW_S,
    MIN_OFFERS,
    MIN_WINDOW_SAMPLES,
    TRIED_SHARE,
    WINDOW_S,
    LivePlan,
)
from sophon_loader.auto.prices import at_first
from sophon_loader.auto.shared_live import KeptLive
from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import OFFLOADS_FROM_CORES, Choice, Facts, Rates
from sophon_loader.decide.policies import Auto
from sophon_loader.decide.tariff import FILES, NO_TRAFFIC, Prices, Tariff, Traffic
from sophon_loader.decide.words import capitalised, resource, what_more_brings
from sophon_loader.encodings.catalogue import encoding_names
from sophon_loader.epoch.account import Account
from sophon_loader.measures.counters import NO_TOTALS, Statistics, Totals
from sophon_loader.measures.moment import Moment
from sophon_loader.measures.verdict import shares_of
from sophon_loader.wire.messages import Offer

KEPT = ("wire_bytes_s", *CostCorrections().figures())

NAMES = encoding_names()
SAMPLES = 100_000
FIRST = Conditions.at_first(loader_cores=1.0, agent_cores=1.0)
KNOWN = FIRST.with_wire(2e6)
OFFERS = [Offer(0, "file", 100_000, 0.0, 0.004), Offer(2, "pixels", 10_000, 0.003, 0.001)]


class Driven:
    """A plan, and counters that a test turns.

    Args:
        conditions: at first; the wire is known already unless told otherwise.
    """

    def __init__(
        self,
        conditions: Conditions = KNOWN,
        processes: int = 1,
        files_here: bool = False,
        samples: int = SAMPLES,
        policy: Auto | None = None,
        agent_cores: float = math.inf,
        admitted: float = 0.0,
    ) -> None:
        self.statistics = Statistics(processes, NAMES)
        policy, free = policy or Auto(), Traffic(weight=0.0)
        conditions = replace(conditions, files_here=files_here)
        self.live = LivePlan(
            policy, samples, self.statistics, processes, NAMES, conditions, free, agent_cores=agent_cores,
            admitted=admitted,
        )  # fmt: skip
        self.begin()

    def begin(self) -> None:
        """An iteration begins, and has delivered its first batch."""
        self.live.begin()
        self.progress(0.0, NO_TOTALS)

    def progress(self, seconds: float, totals: Totals, awaited: float = 0.999) -> bool:
        """So far has it come, and for so much of the time the training has waited."""
        return self.live.progressed(Moment(seconds, totals, awaited * seconds, totals.samples), math.inf)

    def weigh(self, samples: int = MIN_OFFERS, offers: list[Offer] = OFFERS) -> None:
        """The agent tells what it has weighed for some samples."""
        for _ in range(samples):
            self.live.shared.offers.write(0, offers)

    @property
    def told(self) -> Tariff:
        """What the workers are told."""
        packed = self.live.shared.tariff.packed()
        assert packed
        return Tariff.from_plain(msgpack.unpackb(packed))


def totals_of(samples: int = 100, **changed: Any) -> Totals:
    """Of a loader that waits for the wire half of the time, 10 ms for each sample."""
    usual: dict[str, Any] = {
        "samples": samples, "wire_bytes": 10_000 * samples, "loader_cpu_s": 0.002 * samples, "busy_s": 0.002 * samples,
        "waited_s": 0.005 * samples, "offloaded": samples, "agent_cpu_s": 0.0033 * samples,
        "upkeep_s": 0.0002 * samples, "offloaded_upkeep_s": 0.0002 * samples, "work_cpu_s": 0.003 * samples,
        "work_s": 0.003 * samples, "read_bytes": 100_000 * samples, "read_s": 0.0001 * samples,
        "fresh": samples // 2, "net_s": 0.01 * samples,
    }  # fmt: skip
    return Totals(**(usual | changed))


@pytest.fixture
def driven() -> Driven:
    made = Driven()
    made.statistics.agent_cores.array[:] = 1.0
    made.statistics.shortest_net_s.array[:] = 0.0005
    return made


# --- at first -------------------------------------------------------------------------------------------------


def test_before_anything_is_known_all_resources_count_as_equally_scarce() -> None:
    (part,) = at_first(replace(FIRST, rates=Rates(math.inf, 50e6, 2.0, 4.0))).parts
    assert part.share == 1.0 and part.prices == Prices(wire=1 / 50e6, loader=0.5, agent=0.25)
    (part,) = at_first(FIRST).parts
    assert part.prices is not None and part.prices.wire == 1 / LIKELY_WIRE_BYTES_S


def test_files_that_are_read_here_are_not_offloaded_before_anything_is_known() -> None:
    assert at_first(replace(FIRST, files_here=True)).parts == (FILES,)


def test_the_first_requests_already_go_out_at_prices(driven: Driven) -> None:
    live = driven.live
    assert live.tariff.offloads and live.predicted_s is None
    assert not (live.limits() or live.findings().would_bring() or live.findings().weighed())
    (part,) = driven.told.parts
    assert part.prices is not None and max(vars(part.prices).values()) == 1.0


def test_prices_reach_the_workers_at_most_one_and_in_the_agent_s_seconds(driven: Driven) -> None:
    driven.weigh()
    driven.progress(1.0, totals_of(compared_rest_s=COMPARED_FROM_S, compared_loader_s=2 * COMPARED_FROM_S))
    ratio = driven.live.beside.loader_per_rest
    assert ratio == 1.5, "half way from 1 to 2"
    assert driven.live.tariff.offloads
    for shared, own in zip(driven.told.parts, driven.live.tariff.parts, strict=True):
        assert shared.share == own.share and (shared.prices is None) == (own.prices is None)
        if own.prices is not None and shared.prices is not None:
            byte = own.prices.wire + own.prices.loader * LOADER_S_PER_BYTE + own.prices.agent * AGENT_S_PER_BYTE
            most = max(byte, own.prices.loader * ratio, own.prices.agent)
            wanted = (byte / most, own.prices.loader * ratio / most, own.prices.agent / most)
            assert (shared.prices.wire, shared.prices.loader, shared.prices.agent) == pytest.approx(wanted)


@pytest.mark.parametrize(("rest_s", "loader_s", "ratio"), [
    (1.0, 2.0, 2.0), (1.0, 0.5, 0.5), (1.0, 1e6, MAX_RATIO), (1e6, 1.0, 1 / MAX_RATIO), (1.0, 0.0, 1 / MAX_RATIO),
    (0.0, 1.0, 1.0),
])  # fmt: skip
def test_how_fast_a_core_here_is_compared_with_the_agent_s(
    driven: Driven, rest_s: float, loader_s: float, ratio: float
) -> None:
    for second in range(1, 12):
        told = {"compared_rest_s": rest_s * second, "compared_loader_s": loader_s * second}
        driven.progress(float(second), totals_of(100 * second, **told))
    assert driven.live.beside.loader_per_rest == pytest.approx(ratio, rel=2e-3)


def test_where_all_is_in_the_cache_some_samples_are_offloaded_all_the_same(driven: Driven) -> None:
    """From the first window on, or nobody would ever know whether the agent could help."""

    def all_cached(samples: int) -> Totals:
        return totals_of(samples, in_cache=samples, cached=samples, wire_bytes=0, offloaded=0, agent_cpu_s=0.0)

    assert not driven.progress(1.0, all_cached(100))
    priced = [part for part in driven.told.parts if part.prices is not None]
    assert [part.share for part in priced if part.prices and not part.prices.kept_here] == [FIRST_TRIED_SHARE]
    driven.weigh()
    assert driven.live.progressed(Moment(2.0, all_cached(200), 1.99, 200), 50.0)
    assert not driven.live.offloads, "the training step limits, and files that are here need no network"
    assert [part.prices.kept_here for part in driven.told.parts if part.prices is not None] == [False]


def test_what_is_in_the_cache_takes_neither_wire_nor_agent() -> None:
    predicted = []
    for in_cache in (0, 25, 50):
        driven = Driven()
        driven.weigh(64)
        driven.progress(1.0, totals_of(in_cache=in_cache))
        predicted.append(driven.live.predicted_s)
    none, quarter, half = (one or 0.0 for one in predicted)
    assert quarter == pytest.approx(0.75 * none, rel=0.02) and half < 0.6 * none


def test_a_cache_is_filled_slowly_and_ever_faster() -> None:
    """At first it may cost 2 % of the time, later on what it has saved, and never more than 3 % of the set."""
    fills = []
    for in_cache in (0, 5, 10, 30):
        driven = Driven(admitted=0.9)
        driven.weigh(64)
        driven.progress(1.0, totals_of(in_cache=in_cache))
        (fill,) = {part.prices.fill for part in driven.told.parts if part.prices is not None and part.prices.kept_here}
        fills.append(fill * (0.9 - in_cache / 100))
    assert 0 < fills[0] < fills[1] < fills[2] <= fills[3] == pytest.approx(0.03)


# --- windows --------------------------------------------------------------------------------------------------


def test_windows_take_a_second_once_the_wire_is_known(driven: Driven) -> None:
    driven.weigh()
    assert not driven.progress(WINDOW_S - 0.01, totals_of(50))
    assert driven.progress(WINDOW_S, totals_of(60))
    assert not driven.progress(2 * WINDOW_S - 0.01, totals_of(150))
    assert driven.progress(2 * WINDOW_S, totals_of(160))


def test_windows_are_short_until_then() -> None:
    driven = Driven(FIRST)
    driven.weigh()
    driven.statistics.shortest_net_s.array[:] = 0.02  # nothing lies behind others
    for number in (1, 2, 3):
        assert not driven.progress(number * FIRST_WINDOW_S - 0.01, totals_of(100 * number - 1))
        assert driven.progress(number * FIRST_WINDOW_S, totals_of(100 * number))
    driven.statistics.shortest_net_s.array[:] = 0.0005
    assert driven.progress(4 * FIRST_WINDOW_S, totals_of(400))
    assert driven.live.conditions.wire_seen and not driven.progress(5 * FIRST_WINDOW_S, totals_of(500))


def test_what_was_before_the_first_batch_is_no_measure() -> None:
    """Workers had to start."""
    driven = Driven()
    driven.weigh()
    driven.live.begin()
    assert not driven.progress(30.0, totals_of(8))
    assert not driven.progress(30.9, totals_of(90))
    assert driven.progress(31.0, totals_of(108))
    assert driven.live.conditions.rates.gpu_samples_s > 90


def test_a_window_of_few_samples_waits_for_more_but_not_for_ever(driven: Driven) -> None:
    driven.weigh()
    few = totals_of(MIN_WINDOW_SAMPLES - 1)
    assert not driven.progress(1.0, few)
    assert not driven.progress(4 * WINDOW_S - 0.01, few)
    assert driven.progress(4 * WINDOW_S, few)


def test_a_window_without_samples_leaves_conditions_as_they_are(driven: Driven) -> None:
    driven.weigh()
    driven.progress(1.0, totals_of(100))
    before = driven.live.conditions
    driven.progress(10.0, totals_of(100))
    assert driven.live.conditions == before


def test_too_few_offers_change_no_price(driven: Driven) -> None:
    first = driven.live.tariff
    driven.weigh(MIN_OFFERS - 1)
    assert not driven.progress(1.0, totals_of(100))
    assert driven.live.tariff is first and not (
        driven.live.findings().would_bring() or driven.live.findings().weighed()
    )
    assert 0.9e6 < driven.live.conditions.rates.wire_bytes_s < 2e6, "what the window has shown is kept"
    driven.weigh(1)
    assert driven.progress(2.0, totals_of(200)) and driven.live.limits() != {}


@pytest.mark.parametrize(("limits", "changed"), [
    ("wire", {}), ("agent-cpu", {"agent_cpu_s": 2.0}), ("loader-cpu", {"loader_cpu_s": 2.0}),
])  # fmt: skip
def test_what_limits_is_told_before_choices_have_been_weighed(
    driven: Driven, limits: str, changed: dict[str, float]
) -> None:
    """A short first epoch may be over by then."""
    assert not driven.progress(1.0, totals_of(100, **changed))
    account = Account("auto", 0)
    account.now, account.findings = Moment(1.0, totals_of(100), 1.0, 100), driven.live.findings()
    report = account.report()
    assert report.bottleneck == limits and report.limits[limits] == 1.0
    assert report.verdict.startswith(f"{capitalised(resource(limits))} limits. ") and "Twice" not in report.verdict
    assert not (report.throughput or driven.live.findings().would_bring() or driven.live.findings().weighed())


def test_another_iteration_counts_from_nothing_and_goes_on_with_what_is_known(driven: Driven) -> None:
    driven.weigh()
    driven.progress(1.0, totals_of(100))
    known = driven.live.conditions
    driven.begin()
    assert driven.live.conditions == known and driven.live.limits() != {}
    assert not driven.progress(WINDOW_S - 0.01, totals_of(90))
    assert driven.progress(WINDOW_S, totals_of(100))
    assert 1e6 < driven.live.conditions.rates.wire_bytes_s < known.rates.wire_bytes_s < 2e6


def test_iterations_shorter_than_a_window_still_fill_one(driven: Driven) -> None:
    """An epoch of a small dataset may take less than a second."""
    driven.weigh()
    found = []
    for _ in range(8):
        found.append(driven.progress(0.4, totals_of(40)))
        driven.begin()
    assert found == [False, False, True] * 2 + [False, False]
    assert driven.live.conditions.rates.gpu_samples_s == pytest.approx(100 / 0.001)


def test_the_training_step_s_rate_is_that_of_the_time_not_waited(driven: Driven) -> None:
    driven.progress(1.0, totals_of(100), awaited=0.5)
    assert driven.live.conditions.rates.gpu_samples_s == 200
    driven.live.progressed(Moment(2.0, totals_of(200), 1.0, 200), most_samples_s=110.0)
    assert driven.live.conditions.rates.gpu_samples_s == 110, "measured otherwise, with the device synchronised"
    driven.live.progressed(Moment(3.0, totals_of(300), 2.0, 300), math.inf)
    assert driven.live.conditions.rates.gpu_samples_s == math.inf, "it has waited all the time"


def test_the_step_s_rate_counts_what_the_training_has_taken_and_not_what_workers_have_made(driven: Driven) -> None:
    """Eight workers hand over eight large batches at once: they made them in one window, the steps are in the next."""
    driven.live.progressed(Moment(1.0, totals_of(200), 1.0, 0), math.inf)
    assert driven.live.conditions.rates.gpu_samples_s == math.inf, "no step has ended"
    driven.live.progressed(Moment(2.0, totals_of(230), 1.8, 200), math.inf)
    assert driven.live.conditions.rates.gpu_samples_s == pytest.approx(1000), "30 have been made meanwhile"


def test_the_agent_s_cores_are_those_of_all_connections() -> None:
    driven = Driven(processes=2)
    driven.statistics.agent_cores.array[:] = (0.5, 0.25)
    driven.progress(1.0, totals_of(100))
    assert driven.live.conditions.rates.agent_cores == pytest.approx(0.75)


def test_the_agent_s_cores_are_no_more_than_it_has() -> None:
    """What each connection was promised when it asked alone, or when fewer asked, does not add up."""
    driven = Driven(processes=3, agent_cores=8.0)
    driven.statistics.agent_cores.array[:] = (8.0, 4.0, 8 / 3)
    driven.progress(1.0, totals_of(100))
    assert driven.live.conditions.rates.agent_cores == pytest.approx(8.0)
    driven.statistics.agent_cores.array[:] = (12.0, 6.0, 4.0)
    driven.progress(3.0, totals_of(300))
    assert driven.live.conditions.rates.agent_cores == pytest.approx(12.0), "it was given more meanwhile"


# --- what is told ---------------------------------------------------------------------------------------------


def test_the_prediction_is_for_the_whole_dataset(driven: Driven) -> None:
    driven.weigh(20)
    driven.progress(1.0, totals_of(100))
    assert driven.live.tariff.predicted is not None
    assert driven.live.predicted_s == pytest.approx(driven.live.tariff.predicted.seconds * SAMPLES / 20)
    whole_s = driven.live.tariff.predicted.seconds * SAMPLES / 20
    driven.live.begin(share=1 / 4)
    assert driven.live.predicted_s == pytest.approx(whole_s / 4), "of one of four ranks, say"


def test_the_limits_are_shares_of_the_time_the_busiest_first() -> None:
    found = shares_of(EpochTime(gpu_s=1.0, wire_s=4.0, loader_cpu_s=2.0, agent_cpu_s=0.0, disk_s=3.0))
    assert list(found.items()) == [
        ("wire", 1.0), ("agent-disk", 0.75), ("loader-cpu", 0.5), ("gpu", 0.25), ("agent-cpu", 0.0),
    ]  # fmt: skip
    assert set(shares_of(EpochTime(0.0, 0.0, 0.0, 0.0)).values()) == {0.0}


def test_nothing_is_said_of_how_busy_a_wire_is_that_nobody_has_seen() -> None:
    """What is planned with is a guess, and so would be the share of it that is used."""
    unseen = Driven(FIRST)
    unseen.statistics.shortest_net_s.array[:] = 0.0005
    unseen.weigh(20)
    unseen.progress(1.0, totals_of(100, fresh=0, waited_s=0.0, wire_bytes=200_000))
    told = unseen.live.findings()
    assert set(told.limits) == {"gpu", "loader-cpu", "agent-cpu", "agent-disk"} and told.limits["loader-cpu"] == 1.0
    assert set(told.throughput) == {"gpu", "cpu"} and "wire_bytes_s" not in told.rates
    unseen.progress(2.0, totals_of(200))
    told = unseen.live.findings()
    assert "wire" in told.limits and "io" in told.throughput and "wire_bytes_s" in told.rates


def test_the_agent_s_disk_holds_all_choices_up_alike(driven: Driven) -> None:
    driven.weigh(20)
    driven.progress(1.0, totals_of(100, read_bytes=10_000_000, read_s=10.0))
    driven.progress(2.0, totals_of(200, read_bytes=11_000_000, read_s=20.0))
    driven.progress(3.0, totals_of(300, read_bytes=12_000_000, read_s=30.0))
    disk_bytes_s = driven.live.conditions.disk_bytes_s
    assert 1e6 < disk_bytes_s < 2e6
    assert next(iter(driven.live.limits())) == "agent-disk" and driven.live.limits()["gpu"] < 0.1
    assert "the agent's disk limits, at " in driven.live.tariff.reason
    assert driven.live.predicted_s == pytest.approx(100_000 * SAMPLES / disk_bytes_s)
    found = driven.live.findings().would_bring()
    assert found["agent-disk"] > 1.5 and found["wire"] == found["agent-cpu"] == pytest.approx(1.0)


def test_what_more_would_bring(driven: Driven) -> None:
    """A wire-bound loader: twice the wire brings something, twice the training step nothing."""
    driven.weigh(20)
    for second in range(1, 8):
        driven.progress(float(second), totals_of(100 * second))
    found = driven.live.findings().would_bring()
    assert set(found) == {"gpu", "wire", "loader-cpu", "agent-cpu", "agent-disk"}
    assert next(iter(driven.live.limits())) == "wire"
    assert found["wire"] > 1.5 and found["gpu"] == pytest.approx(1.0) and min(found.values()) > 0.99


def test_what_more_would_bring_is_of_one_moment_whatever_comes_meanwhile() -> None:
    """Asked for by another thread than the one that revises: the wire falls to a tenth while it is worked out."""

    class Interrupted(Auto):
        meanwhile: Callable[[], object] | None = None

        def tariff(self, facts: Facts, traffic: Traffic = NO_TRAFFIC) -> Tariff:
            found = super().tariff(facts, traffic)
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            return found

    policy = Interrupted()
    driven = Driven(policy=policy)
    driven.statistics.agent_cores.array[:] = 1.0
    driven.statistics.shortest_net_s.array[:] = 0.0005
    driven.weigh(20)
    driven.progress(1.0, totals_of(100))
    undisturbed = dict(driven.live.findings().would_bring())
    driven.progress(2.0, totals_of(200))
    policy.meanwhile = lambda: driven.progress(3.0, totals_of(300, wire_bytes=2_100_000))
    assert driven.live.findings().would_bring() == pytest.approx(undisturbed, rel=0.02)
    assert driven.live.conditions.rates.wire_bytes_s < 0.3e6, "of the next moment"


def test_what_the_choices_take(driven: Driven) -> None:
    driven.weigh(MIN_OFFERS)
    driven.weigh(MIN_OFFERS, [OFFERS[0]._replace(nbytes=50_000)])
    driven.progress(1.0, totals_of(100))
    found = driven.live.findings().weighed()
    assert list(found) == ["file@0", str(Choice(2, "pixels"))]
    assert found["file@0"]["wire_bytes"] == 75_000 and found["pixels@2"]["wire_bytes"] == 10_000
    assert found["pixels@2"]["agent_s"] == pytest.approx(0.003 + 0.0003, rel=1e-3), "with reading and upkeep"
    assert set(found["file@0"]) == {"wire_bytes", "agent_s", "loader_s"}


def test_what_goes_beside_ops_is_learnt(driven: Driven) -> None:
    """Of 4 ms at the loader, 1 ms was left to it by the agent; 0.3 ms of the agent's were neither ops nor encoding."""
    driven.weigh(20)
    told = {"weighed": 10, "weighed_rest_s": 0.01}
    driven.progress(1.0, totals_of(100, loader_cpu_s=0.4, **told))
    live, agent_bytes_s = driven.live, 10_000 * AGENT_S_PER_BYTE
    weight = 0.4 / (0.4 + KNOWN_FROM_S)
    assert live.beside.loader_s == pytest.approx(weight * (0.003 - 10_000 * LOADER_S_PER_BYTE))
    assert live.beside.agent_s == pytest.approx(0.0003 - agent_bytes_s)
    more = {"agent_cpu_s": 0.39, "upkeep_s": 0.06, "offloaded_upkeep_s": 0.02, "work_cpu_s": 0.3}
    driven.progress(2.0, totals_of(200, offloaded=100, **more))
    assert live.beside.file_s == pytest.approx(0.0002 + 0.0004 - agent_bytes_s), (
        "100 files, which took 0.2 ms each to read"
    )


def test_what_the_agent_s_work_takes_is_set_beside_its_estimates(driven: Driven) -> None:
    driven.weigh()
    driven.progress(1.0, totals_of(weighed_work_s=3 * COMPARED_FROM_S, estimated_work_s=COMPARED_FROM_S))
    ratio = driven.live.beside.agent_per_work
    assert ratio == 2.0, "half way from 1 to 3"
    for shared, own in zip(driven.told.parts, driven.live.tariff.parts, strict=True):
        if own.prices is not None and shared.prices is not None:
            byte = own.prices.wire + own.prices.loader * LOADER_S_PER_BYTE + own.prices.agent * AGENT_S_PER_BYTE
            assert shared.prices.agent * byte == pytest.approx(2 * own.prices.agent * shared.prices.wire)


# --- nothing to gain, or less than nothing --------------------------------------------------------------------


def test_while_nothing_is_offloaded_a_few_samples_are_still_tried() -> None:
    """So that it stays known what offloading would take."""
    driven = Driven(files_here=True)
    files, priced = driven.told.parts
    assert not driven.live.tariff.offloads
    assert (files.share, files.prices) == (1 - FIRST_TRIED_SHARE, None)
    assert priced.share == FIRST_TRIED_SHARE and priced.prices is not None


@pytest.mark.parametrize(("cores", "share"), [(1.0, TRIED_SHARE), (0.1, 1 / 112), (0.05, 1 / 224), (0.02, 0.0)])
def test_what_is_tried_is_no_burden_to_a_small_agent(cores: float, share: float) -> None:
    """Of its cores a 32nd at most, at 3.5 ms for each of 100 samples/s; and next to no CPU is left alone."""
    driven = Driven(KNOWN.with_wire(1e10))
    driven.statistics.agent_cores.array[:] = cores
    driven.weigh(samples=20, offers=[OFFERS[0]._replace(rest_s=0.0005), Offer(2, "pixels", 10_000, 0.0035, 0.0005)])
    idle = {"wire_bytes": 0, "waited_s": 0.0, "fresh": 0, "net_s": 0.0, "work_cpu_s": 0.0, "work_s": 0.0,
            "upkeep_s": 0.0, "offloaded_upkeep_s": 0.0, "read_s": 0.0, "offloaded": 0}  # fmt: skip
    for second in range(1, 4):
        driven.progress(float(second), totals_of(100 * second, **idle), awaited=0.0)
    assert not driven.live.tariff.offloads
    tried = sum(part.share for part in driven.told.parts if part.prices is not None)
    assert tried == pytest.approx(share, rel=0.1)


def test_an_agent_with_next_to_no_cpu_is_asked_for_files_before_anything_is_known() -> None:
    assert at_first(Conditions.at_first(1.0, 0.9 * OFFLOADS_FROM_CORES)).parts == (FILES,)
    assert at_first(Conditions.at_first(1.0, OFFLOADS_FROM_CORES)).offloads


def test_nothing_is_offloaded_to_workers_that_are_stopped_for_most_of_a_period(driven: Driven) -> None:
    """One sample would take the files of a whole period along; with its cores the agent gets work again."""
    driven.weigh()
    driven.progress(1.0, totals_of(100))
    assert driven.live.tariff.offloads
    driven.statistics.per_worker.array[:] = 0.9 * OFFLOADS_FROM_CORES
    driven.progress(2.0, totals_of(200))
    assert not driven.live.tariff.offloads and driven.told.parts == (FILES,)
    assert "next to no CPU" in driven.live.tariff.reason and driven.live.limits()
    driven.statistics.per_worker.array[:] = 1.0
    driven.progress(3.0, totals_of(300))
    assert driven.live.tariff.offloads and driven.told.offloads


def test_what_limits_is_told_of_an_agent_that_never_weighed_anything() -> None:
    """One with next to no CPU from the start on: all of it goes into sending files."""
    driven = Driven(Conditions.at_first(1.0, 0.02).with_wire(12e6))
    driven.statistics.agent_cores.array[:] = driven.statistics.per_worker.array[:] = 0.02
    files = {"wire_bytes": 5_000_000, "offloaded": 0, "agent_cpu_s": 0.02, "upkeep_s": 0.015, "work_cpu_s": 0.0,
             "offloaded_upkeep_s": 0.0, "work_s": 0.0, "fresh": 0, "net_s": 0.0}  # fmt: skip
    driven.progress(1.0, totals_of(50, **files))
    assert next(iter(driven.live.limits())) == "agent-cpu" and not driven.live.tariff.offloads
    assert driven.live.findings().would_bring()["agent-cpu"] == pytest.approx(2.0, rel=0.05)
    assert driven.live.predicted_s == pytest.approx(SAMPLES / 50, rel=0.05) and driven.told.parts == (FILES,)
    driven.statistics.agent_cores.array[:] = driven.statistics.per_worker.array[:] = 1.0
    driven.progress(2.0, totals_of(100, **{name: 2 * value for name, value in files.items()}))
    assert [part.share for part in driven.told.parts if part.prices] == [FIRST_TRIED_SHARE], "soon it is weighed"


def test_what_limits_is_told_where_the_loader_leaves_an_agent_no_core() -> None:
    """It says that it has all cores of the host, which the loader's processes use themselves."""
    driven = Driven(replace(Conditions.at_first(1.0, 0.01).with_wire(3e6), max_agent_cores=0.01))
    driven.statistics.agent_cores.array[:] = driven.statistics.per_worker.array[:] = 1.0
    files = {"wire_bytes": 3_000_000, "offloaded": 0, "agent_cpu_s": 0.005, "upkeep_s": 0.005, "work_cpu_s": 0.0,
             "offloaded_upkeep_s": 0.0, "work_s": 0.0, "fresh": 0, "net_s": 0.0}  # fmt: skip
    driven.progress(1.0, totals_of(30, **files))
    assert next(iter(driven.live.limits())) == "wire" and not driven.live.tariff.offloads


def test_prices_say_for_how_many_cores_of_the_agent_they_were_worked_out(driven: Driven) -> None:
    """The least that a worker was told: to ask for too little is cheap."""
    driven.statistics.per_worker.array[:] = 0.25
    driven.progress(1.0, totals_of(100))
    (part,) = driven.told.parts
    assert part.prices is not None and part.prices.per_worker == 0.25, "also before prices are worked out"
    driven.weigh()
    driven.statistics.per_worker.array[:] = 0.5
    driven.progress(2.0, totals_of(200))
    assert {part.prices.per_worker for part in driven.told.parts if part.prices is not None} == {0.5}


def test_a_job_that_the_training_limits_offloads_nothing(driven: Driven) -> None:
    driven.weigh()
    driven.progress(1.0, totals_of(100, wire_bytes=0, waited_s=0.0, fresh=0, net_s=0.0), awaited=0.0)
    driven.progress(20.0, totals_of(200, wire_bytes=0, waited_s=0.0, fresh=0, net_s=0.0), awaited=0.0)
    assert not driven.live.tariff.offloads and next(iter(driven.live.limits())) == "gpu"
    assert [part.share for part in driven.told.parts] == [1 - TRIED_SHARE, TRIED_SHARE]


def test_a_tariff_that_loses_is_left_for_files(driven: Driven) -> None:
    """The workers ask for files, while the tariff itself goes on to be worked out."""
    wide = Driven(KNOWN.with_wire(100e6))
    wide.statistics.agent_cores.array[:] = 1.0
    wide.weigh(20)
    quiet = {"fresh": 0, "net_s": 0.0, "loader_cpu_s": 0.001, "waited_s": 0.0}
    found = []
    for second in range(1, DOUBTED_FOR + HELD_FIRST + 1):
        wide.progress(float(second), totals_of(40 * second, **quiet))
        assert wide.live.tariff.offloads, "by the model it is worth it"
        found.append(wide.told.parts[0].share == 1 - TRIED_SHARE)
    assert found.count(True) == HELD_FIRST and not found[0]
    assert wide.live.limits()


# --- what is kept ---------------------------------------------------------------------------------------------


def learnt() -> Driven:
    driven = Driven()
    driven.statistics.agent_cores.array[:] = 1.0
    driven.weigh(20)
    driven.progress(1.0, totals_of(100, compared_rest_s=0.01, compared_loader_s=0.02))
    return driven


def test_another_run_goes_on_from_what_was_kept() -> None:
    first, second = learnt(), Driven(FIRST)
    kept = first.live.kept()
    second.live.take_over(kept)
    assert second.live.kept().figures == kept.figures and set(kept.figures) == set(KEPT)
    assert second.live.conditions.wire_seen and len(second.live.shared.offers) == 20
    assert second.live.limits() and second.live.tariff.offloads and second.live.predicted_s
    again = Driven(FIRST, processes=8)
    again.live.take_over(kept)
    assert len(again.live.shared.offers) == 20 and again.live.limits()


def test_a_wire_that_was_never_the_limit_is_not_kept() -> None:
    driven = Driven(FIRST)
    assert driven.live.kept().figures["wire_bytes_s"] == 0.0
    other = Driven(FIRST)
    other.live.take_over(driven.live.kept())
    assert not other.live.conditions.wire_seen


def _without(kept: KeptLive, name: str) -> KeptLive:
    rest = {key: value for key, value in kept.figures.items() if key != name}
    return KeptLive(rest, {key: value for key, value in kept.arrays.items() if key != name})


@pytest.mark.parametrize("name", [*KEPT, "offer_kinds", "offer_costs", "offer_names"])
def test_what_is_not_whole_is_not_taken(name: str) -> None:
    driven = Driven(FIRST)
    before = driven.live.kept().figures
    driven.live.take_over(_without(learnt().live.kept(), name))
    assert driven.live.kept().figures == before and not driven.live.limits()
    assert len(driven.live.shared.offers) == 0


def test_offers_of_other_encodings_are_not_taken() -> None:
    """They are kept by their places in a list, which changes when a codec is installed."""
    kept = learnt().live.kept()
    names = np.array([*NAMES[:1], "of-another-package", *NAMES[1:]])
    driven = Driven(FIRST)
    driven.live.take_over(replace(kept, arrays={**kept.arrays, "offer_names": names}))
    assert len(driven.live.shared.offers) == 0


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e300, math.inf, math.nan])
def test_absurd_figures_do_no_harm(name: str, value: float) -> None:
    """Of a file that somebody has edited: whatever is taken, the run goes on."""
    kept = learnt().live.kept()
    driven = Driven(FIRST)
    driven.statistics.agent_cores.array[:] = 1.0
    driven.live.take_over(replace(kept, figures={**kept.figures, name: value}))
    driven.weigh()
    for second in range(1, 6):
        told = {"compared_rest_s": 0.01 * second, "compared_loader_s": 0.01 * second}
        driven.progress(float(second), totals_of(100 * second, **told))
    assert driven.live.limits() and driven.live.predicted_s and math.isfinite(driven.live.predicted_s)


@pytest.mark.parametrize("change", [
    lambda kinds, costs: (kinds.astype(np.int64), costs), lambda kinds, costs: (kinds, costs.astype(np.float64)),
    lambda kinds, costs: (kinds[:, :5], costs), lambda kinds, costs: (kinds, costs[:3]),
    lambda kinds, costs: (kinds + np.uint16(60_000), costs), lambda kinds, costs: (kinds, costs * np.float32(-1)),
    lambda kinds, costs: (kinds, costs * np.float32(np.nan)), lambda kinds, costs: (kinds[0], costs),
    lambda kinds, costs: (kinds, costs + np.float32(np.inf)),
])  # fmt: skip
def test_offers_that_are_none_are_not_taken(change: Any) -> None:
    kept = learnt().live.kept()
    kinds, costs = change(kept.arrays["offer_kinds"], kept.arrays["offer_costs"])
    driven = Driven(FIRST)
    driven.live.take_over(replace(kept, arrays={**kept.arrays, "offer_kinds": kinds, "offer_costs": costs}))
    assert len(driven.live.shared.offers) == 0 and not driven.live.conditions.wire_seen


def test_memory_does_not_grow_with_the_dataset() -> None:
    sizes = set()
    for samples in (1, 1000, 100_000_000):
        driven = Driven(samples=samples)
        shared = driven.live.shared
        arrays = [shared.offers._serial, shared.offers._kinds, shared.offers._costs, shared.tariff._note._places]
        sizes.add(sum(one.array.nbytes for one in [*arrays, driven.statistics._values]))
    assert len(sizes) == 1 and sizes.pop() < 2 << 20


# --- the cache's verdict --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("admitted", "times"), [(0.1, 1.125), (0.5, None), (0.0, None), (1.0, None)])
def test_what_twice_of_the_cache_would_bring(admitted: float, times: float | None) -> None:
    """A cache finds the share that it is to hold, once it is full; that of now may be less."""
    driven = Driven(admitted=admitted)
    driven.weigh(64)
    driven.progress(1.0, totals_of())
    brings = driven.live.findings().would_bring()
    assert ("cache" in brings) == (0 < admitted < 1)
    if times is not None:
        assert brings["cache"] == pytest.approx(times, rel=0.05)
        assert "twice the cache" in what_more_brings(brings).lower()
