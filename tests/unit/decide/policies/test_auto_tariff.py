"""`Auto.tariff`: prices at which an agent that chooses for itself comes near the linear optimum."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.decide import FILE, Choice, ChoiceTable, Facts, Prices, Rates
from sophon_loader.decide.cost import EpochTime, EpochWork, time_without_offloading
from sophon_loader.decide.policies.auto import LEAST_PART, SPARE, Auto
from sophon_loader.decide.tariff import FILES, Part, Tariff
from tests.support.decide_tables import (
    CHOICES,
    JOBS,
    WIRE_BOUND,
    facts_of,
    full_tariff,
    linear_optimum,
    random_table,
    table_of,
    taken,
)
from tests.support.drawn import examples

every_job = pytest.mark.parametrize("job", JOBS)
PIXELS = Choice(2, "pixels")


def played(tariff: Tariff, facts: Facts) -> EpochTime:
    """How long the samples take if each part of the tariff gets its share of each of them."""
    table = facts.table
    assert table is not None
    sums = np.zeros(3)
    for part in tariff.parts:
        chosen = taken(table, part.prices)
        rows = np.arange(table.samples)
        one = [costs[rows, chosen].sum(dtype=np.float64) for costs in (table.wire_bytes, table.loader_s, table.agent_s)]
        sums += part.share * np.array(one)
    work = EpochWork(wire_bytes=float(sums[0]), loader_s=float(sums[1]), agent_s=float(sums[2]))
    return work.time(table.samples, facts.rates)


def seconds(time: EpochTime | None) -> float:
    assert time is not None
    return time.seconds


@every_job
@pytest.mark.parametrize("samples", [8, 100, 1000, pytest.param(2048, marks=pytest.mark.long)])
def test_the_mix_is_within_the_slack_of_the_linear_optimum(job: str, samples: int) -> None:
    table = random_table(samples, seed=samples)
    facts = facts_of(table, JOBS[job])
    best_s = linear_optimum(table, JOBS[job])
    for slack, most in ((0.0, 1.005), (0.01, 1.01 * 1.005)):
        tariff = full_tariff(facts, slack)
        assert seconds(tariff.predicted) <= most * best_s
        assert played(tariff, facts).seconds <= most * best_s * 1.002, "and so it is when it is played"


@every_job
def test_what_is_predicted_is_what_is_played(job: str) -> None:
    facts = facts_of(random_table(500, seed=3), JOBS[job])
    tariff = Auto().tariff(facts)
    found = played(tariff, facts)
    for name, value in vars(found).items():
        assert getattr(tariff.predicted, name) == pytest.approx(value, rel=5e-3), name
    assert facts.table is not None and tariff.without == time_without_offloading(facts.table, facts.rates)


def test_where_all_is_cached_nothing_is_asked_for_unless_the_loader_s_cpu_limits() -> None:
    table = table_of([100_000, 40_000], [0.0, 0.004], [[0.01, 0.001]])
    wire = replace(facts_of(table, Rates(100, 1e6, 8.0, 8.0)), cached=1.0)
    assert Auto().tariff(wire).parts == (FILES,)
    assert Auto().tariff(replace(wire, cached=0.0)).offloads
    loader = replace(facts_of(table, Rates(1e6, 1e9, 0.5, 8.0)), cached=1.0)
    tariff = Auto().tariff(loader)
    assert tariff.offloads and not any(part.prices.kept_here for part in tariff.parts if part.prices)
    assert seconds(tariff.predicted) < 0.5 * seconds(tariff.without)


@pytest.mark.parametrize("cached", [0.2, 0.9])
def test_where_the_wire_limits_what_is_cached_is_read_here(cached: float) -> None:
    table = table_of([100_000, 40_000], [0.0, 0.004], [[0.01, 0.001]])
    tariff = Auto().tariff(replace(facts_of(table, Rates(1e6, 1e6, 8.0, 8.0)), cached=cached))
    (part,) = tariff.parts
    assert part.prices is not None and part.prices.kept_here
    assert seconds(tariff.predicted) == pytest.approx((1 - cached) * 0.04, rel=0.01)
    assert seconds(tariff.without) == pytest.approx((1 - cached) * 0.1, rel=0.01)


amounts = st.integers(0, 1000).map(float)
times = st.integers(0, 100).map(lambda n: n / 10)
rate = st.floats(1e-2, 1e2) | st.just(math.inf)
some_rates = st.builds(Rates, *(rate for _ in range(4)))


@st.composite
def small_tables(draw: st.DrawFn) -> ChoiceTable:
    samples, width = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rows = [[draw(st.tuples(amounts, times, times)) for _ in range(width)] for _ in range(samples)]
    costs = np.array(rows, np.float32).reshape(samples, width, 3)
    for row in range(samples):
        for column in range(1, width):
            if draw(st.integers(0, 5)) == 0:
                costs[row, column, 0] = np.inf
    return ChoiceTable(CHOICES[:width], costs[..., 0], costs[..., 1], costs[..., 2])


@examples(200)
@given(small_tables(), some_rates)
def test_small_tables_against_the_linear_programme(table: ChoiceTable, rates: Rates) -> None:
    facts = facts_of(table, rates)
    tariff = full_tariff(facts)
    best_s, without_s = linear_optimum(table, rates), time_without_offloading(table, rates).seconds
    instant = 1e-6 * without_s
    # A part of less than a hundredth is left out: all others then have up to so much more.
    left_out = 1 / (1 - 3 * LEAST_PART)
    assert seconds(tariff.predicted) <= max(1.01 * best_s * left_out, instant) * (1 + 1e-5) + 1e-9
    assert seconds(tariff.predicted) <= without_s * (1 + 1e-6) + 1e-9, "never worse than not offloading"
    assert math.isclose(sum(part.share for part in tariff.parts), 1.0, rel_tol=1e-9)
    if without_s <= 1.01 * best_s * (1 - 1e-6):
        assert tariff.parts == (FILES,)
    if tariff.offloads:
        assert seconds(tariff.predicted) < without_s


@examples(150)
@given(small_tables(), some_rates)
def test_less_work_is_never_worse_than_not_offloading(table: ChoiceTable, rates: Rates) -> None:
    tariff, without_s = Auto().tariff(facts_of(table, rates)), time_without_offloading(table, rates).seconds
    assert seconds(tariff.predicted) <= without_s * (1 + 1e-6) + 1e-9
    if tariff.offloads:
        assert seconds(tariff.predicted) < without_s


@every_job
def test_less_work_costs_no_more_than_was_agreed(job: str) -> None:
    facts = facts_of(random_table(1000, seed=9), JOBS[job])
    assert facts.table is not None
    spared, full = Auto().tariff(facts).predicted, full_tariff(facts).predicted
    assert seconds(spared) <= (1 + 0.01 * SPARE) * 1.005 * linear_optimum(facts.table, JOBS[job])

    def work_s(time: EpochTime | None) -> float:
        assert time is not None
        return time.wire_s + time.loader_cpu_s + time.agent_cpu_s

    assert work_s(spared) <= 1.001 * work_s(full) or seconds(full) <= 1.02 * facts.samples / facts.rates.gpu_samples_s


def test_the_last_bytes_are_not_bought_with_all_the_cpu() -> None:
    """Half of the bytes for a little CPU, a fiftieth less for ten times as much."""
    choices = (FILE, Choice(2, "cheap"), Choice(2, "dear"))
    table = table_of([[1e5, 5e4, 4.9e4]] * 200, [[0, 1e-3, 1e-2]] * 200, choices=choices)
    rates = Rates(1e9, 10e6, 1, 1)  # files take 2 s, all cheap 1 s, during which the agent is busy for 0.2 s
    spared, full = (
        one.predicted for one in (Auto().tariff(facts_of(table, rates)), Auto(0).tariff(facts_of(table, rates)))
    )
    assert spared is not None and full is not None
    assert full.agent_cpu_s > 0.9 and full.wire_s < 1
    assert spared.agent_cpu_s < 0.25 and spared.seconds < 1.01


@examples(150)
@given(small_tables(), some_rates)
def test_prices_are_numbers_that_can_be_sent(table: ChoiceTable, rates: Rates) -> None:
    for part in Auto().tariff(facts_of(table, rates)).parts:
        assert LEAST_PART <= part.share <= 1
        if part.prices is not None:
            values = [part.prices.wire, part.prices.loader, part.prices.agent]
            assert all(0 <= value < math.inf for value in values) and max(values) > 0


@examples(40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.tuples(*(st.floats(0.2, 5) for _ in range(4))))
def test_no_mix_of_two_plans_by_brute_force_is_better(seed: int, samples: int, factors: tuple[float, ...]) -> None:
    """Against whole plans at a grid of prices, and mixes of two of them: none may be over the slack better.

    But for one sample: where two of its choices cost the same at a price, played it takes the other one.
    """
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 5))
    costs = rng.gamma(3, 1, (3, samples, width)).astype(np.float32)
    table = ChoiceTable(CHOICES[:width], *costs)
    facts = facts_of(table, Rates(*factors))
    tariff = full_tariff(facts)
    grid = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)
    parts = [None, *(Prices(w, a, r) for w in grid for a in grid for r in grid if w + a + r > 0)]
    some = [Tariff((Part(1.0, part),), "") for part in parts]
    best_s = min(played(one, facts).seconds for one in some)
    for other in parts[:: max(1, len(parts) // 12)]:
        for share in (0.25, 0.5, 0.75):
            mix = Tariff((Part(share, other), Part(1 - share, parts[-1])), "")
            best_s = min(best_s, played(mix, facts).seconds)
    assert seconds(tariff.predicted) <= 1.01 * best_s * (1 + 1e-3) / (1 - 3 * LEAST_PART)
    assert played(tariff, facts).seconds <= 1.01 * best_s * (1 + 1e-3) * (1 + 2 / samples)


def test_samples_that_are_all_alike_are_split_by_shares() -> None:
    """One set of prices would send all of them one way."""
    table = table_of([[100, 100]] * 300, [[0, 0.01]] * 300, [[0.01, 0]] * 300, (FILE, PIXELS))
    tariff = full_tariff(facts_of(table, Rates(1e9, 1e9, 1, 2)), slack=0)
    assert seconds(tariff.predicted) == pytest.approx(1.0, rel=5e-3)
    shares = {part.prices is None or taken(table, part.prices)[0] == 0: part.share for part in tariff.parts}
    assert len(tariff.parts) == 2 and shares[True] == pytest.approx(1 / 3, rel=1e-2)


def test_a_gpu_bound_job_is_left_alone() -> None:
    tariff = Auto().tariff(facts_of(random_table(100), Rates(1, 1e9, 8, 8)))
    assert tariff.parts == (FILES,) and not tariff.offloads
    assert "the training step limits" in tariff.reason and tariff.reason.endswith("nothing is offloaded")
    assert tariff.predicted == tariff.without


def test_more_bytes_than_the_files_have_are_sent_for_a_reason_that_is_told() -> None:
    table = table_of([[100, 188]] * 300, [[0, 0.01]] * 300, [[0.02, 0]] * 300, (FILE, PIXELS))
    reason = Auto().tariff(facts_of(table, Rates(1e9, 1e9, 1, 8))).reason
    assert reason.endswith("187 % of the files' bytes, to spare the loader's CPU, are sent")


@pytest.mark.parametrize(("saved", "offloads"), [(0.5, False), (2.0, True)])
def test_a_gain_within_the_slack_is_no_reason_to_offload(saved: float, offloads: bool) -> None:
    table = table_of([[1e6, 1e6 * (1 - saved / 100)]] * 200, [[0, 1e-4]] * 200, choices=(FILE, PIXELS))
    assert Auto().tariff(facts_of(table)).offloads is offloads


def test_when_no_choice_helps_nothing_is_offloaded() -> None:
    table = table_of([[100, 200]] * 50, [[0, 1]] * 50, [[1, 2]] * 50, (FILE, PIXELS))
    tariff = Auto().tariff(facts_of(table, Rates(1e9, 1, 1, 1)))
    assert tariff.parts == (FILES,) and "the network limits" in tariff.reason


def test_of_equally_short_epochs_the_one_with_the_least_traffic() -> None:
    choices = (FILE, Choice(2, "a"), Choice(2, "b"))
    table = table_of([[1e6, 9e5, 1e5]] * 150, [[0, 1e-4, 1e-4]] * 150, choices=choices)
    rates = Rates(150 / 2.0, 60e6, 1, 1)  # the GPU takes 2 s, files 2.5 s, either other choice less
    tariff = Auto().tariff(facts_of(table, rates))
    assert {int(taken(table, part.prices)[0]) for part in tariff.parts} == {2}


def test_the_reason_says_what_limits_and_what_is_sent() -> None:
    tariff = Auto().tariff(facts_of(random_table(300), WIRE_BOUND))
    assert tariff.reason.startswith("without offloading the network limits, at ")
    assert tariff.reason.endswith(" % of the files' bytes are sent")


@pytest.mark.parametrize(
    ("rates", "choices"), [(Rates(100, 60e6, 8, 2), 2), (Rates(1e4, 1e6, 8, 2), 2), (Rates(1e4, 1e6, 8, 2), 1)]
)
def test_the_reason_is_the_same_however_many_samples_it_was_worked_out_from(rates: Rates, choices: int) -> None:
    """They are those of late; seconds of theirs would be taken for the epoch's."""
    reasons = set()
    for samples in (50, 500):
        rows = [[1e5, 4e4][:choices]] * samples, [[0.0, 1e-4][:choices]] * samples
        reasons.add(Auto().tariff(facts_of(table_of(*rows), rates)).reason)
    assert len(reasons) == 1 and " samples/s" in reasons.pop()


def test_files_that_need_no_wire() -> None:
    """As with agent="local"."""
    table = random_table(300, seed=2)
    wire = table.wire_bytes.copy()
    wire[:, 0] = 0
    table = ChoiceTable(table.choices, wire, table.agent_s, table.loader_s)
    for rates in JOBS.values():
        tariff = full_tariff(facts_of(table, rates))
        assert seconds(tariff.predicted) <= 1.01 * 1.005 * linear_optimum(table, rates)
