"""What the policies promise, on random small tables, against brute force.

SOPHON's greedy, stated exactly. Let the order be that of falling efficiency over samples that shrink, k the number it
takes, T(j) the epoch with the first j taken. With loader CPU free and no choice cheaper for the agent than the file:
  - it takes a prefix of the order, and T(k) <= T(0): never slower than no offloading;
  - T(k) is the least T(j) over all prefixes;
  - it ends because the order is exhausted, or the wire no longer leads, or one more sample would be slower;
  - T(k) <= T(S) + min(d_wire, d_agent) for every subset S of the samples that shrink, where d_wire and d_agent are what
    the single sample at the crossing point changes of the two terms: greedy is optimal when that sample may be split.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sophon_loader.decide import (
    FILE,
    POLICIES,
    Choice,
    ChoiceTable,
    EpochTime,
    Facts,
    FastFlow,
    Rates,
    Trial,
    epoch_time,
    epoch_work,
    spread,
)
from sophon_loader.decide.policies.auto import Auto
from sophon_loader.decide.policies.sophon import by_efficiency, smallest_choices
from tests.support.decide_tables import CHOICES, facts_of, taken
from tests.support.drawn import examples

quick = examples(150)
sizes = st.integers(1, 1000).map(float) | st.sampled_from([math.inf, 0.0])
times = st.integers(0, 100).map(lambda n: n / 10)
positive = st.floats(1e-3, 1e3)
some_rates = st.builds(Rates, *(positive | st.just(math.inf) for _ in range(4)))


@st.composite
def tables(
    draw: st.DrawFn, most_samples: int = 6, most_choices: int = 4, wild: bool = False, plain: bool = False
) -> ChoiceTable:
    """Small tables. `wild` adds what a broken measurement may bring; `plain` is the paper's world: the
    loader's CPU is free, and each choice costs the agent what the file does, or more."""
    samples, width = draw(st.integers(1, most_samples)), draw(st.integers(1, most_choices))
    broken = st.sampled_from([math.nan, -1.0, -math.inf, math.inf, 3e38]) if wild else st.nothing()
    size, time = sizes | broken, times | broken
    rows = [
        [draw(st.tuples(size, time, st.just(0.0) if plain else time)) for _ in range(width)] for _ in range(samples)
    ]
    costs = np.array(rows, dtype=np.float32).reshape(samples, width, 3)
    if not wild:
        costs[:, 0, 0] = np.where(np.isfinite(costs[:, 0, 0]), costs[:, 0, 0], 500)
    if plain:
        costs[:, 1:, 1] += costs[:, :1, 1]
    usable = np.isfinite(costs[:, 0]).all(axis=1) & (costs[:, 0] >= 0).all(axis=1)
    assume(usable.any())
    return ChoiceTable(CHOICES[:width], costs[..., 0], costs[..., 1], costs[..., 2])


# --- SOPHON ---------------------------------------------------------------------------------------------------


def prefix_times(table: ChoiceTable, rates: Rates) -> tuple[NDArray[np.uint32], NDArray[np.uint8], list[EpochTime]]:
    smallest = smallest_choices(table)
    order = by_efficiency(table, smallest)
    chosen = np.zeros(table.samples, np.uint8)
    found = [epoch_time(table, chosen, rates)]
    for i in order:
        chosen[i] = smallest[i]
        found.append(epoch_time(table, chosen, rates))
    return order, smallest, found


@quick
@given(tables(most_samples=12, plain=True), some_rates)
def test_sophon_is_the_best_prefix_of_its_order(table: ChoiceTable, rates: Rates) -> None:
    plan = POLICIES["sophon"]().plan(facts_of(table, rates))
    order, smallest, prefixes = prefix_times(table, rates)
    taken = np.count_nonzero(plan.chosen)
    assert set(np.flatnonzero(plan.chosen)) == set(order[:taken].tolist())
    assert (plan.chosen[order[:taken]] == smallest[order[:taken]]).all()
    if prefixes[0].bottleneck != "wire":
        assert taken == 0
        return
    reached = plan.predicted.seconds
    assert reached <= min(terms.seconds for terms in prefixes) * (1 + 1e-9)
    if taken < len(order) and plan.predicted.bottleneck == "wire":
        assert prefixes[taken + 1].seconds >= reached * (1 - 1e-9)


@quick
@given(tables(most_samples=9, plain=True), some_rates)
def test_sophon_is_within_one_sample_of_every_subset(table: ChoiceTable, rates: Rates) -> None:
    plan = POLICIES["sophon"]().plan(facts_of(table, rates))
    order, smallest, prefixes = prefix_times(table, rates)
    assume(prefixes[0].bottleneck == "wire")
    best = math.inf
    for size in range(len(order) + 1):
        for subset in itertools.combinations(order.tolist(), size):
            chosen = np.zeros(table.samples, np.uint8)
            chosen[list(subset)] = smallest[list(subset)]
            best = min(best, epoch_time(table, chosen, rates).seconds)
    at = next((k for k, terms in enumerate(prefixes) if terms.bottleneck != "wire"), 0)
    step = 0.0
    if at:
        here, before = prefixes[at], prefixes[at - 1]
        step = min(before.wire_s - here.wire_s, here.agent_cpu_s - before.agent_cpu_s)
    assert plan.predicted.seconds <= (best + step) * (1 + 1e-6) + 1e-9


@quick
@given(tables(most_samples=10), some_rates)
def test_sophon_is_never_slower_than_no_offloading(table: ChoiceTable, rates: Rates) -> None:
    facts = facts_of(table, rates)
    times_by_name = {name: POLICIES[name]().plan(facts).predicted.seconds for name in ("sophon", "no-off")}
    assert times_by_name["sophon"] <= times_by_name["no-off"] * (1 + 1e-6)


# --- every policy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"auto"}))
@examples(80)
@given(table=tables(most_samples=8, wild=True), rates=some_rates)
def test_broken_measurements_never_make_a_broken_plan(name: str, table: ChoiceTable, rates: Rates) -> None:
    plan = POLICIES[name]().plan(facts_of(table, rates))
    assert plan.samples == table.samples
    if plan.choices == table.choices:
        assert np.isfinite(table.wire_bytes[np.arange(table.samples), plan.chosen]).all()
        assert math.isfinite(epoch_work(table, plan.chosen).wire_bytes)
    if plan.predicted is not None:
        assert math.isfinite(plan.predicted.seconds)


@examples(80)
@given(table=tables(most_samples=8, wild=True), rates=some_rates)
def test_broken_measurements_never_make_broken_prices(table: ChoiceTable, rates: Rates) -> None:
    tariff = Auto().tariff(facts_of(table, rates))
    for part in tariff.parts:
        assert np.isfinite(table.wire_bytes[np.arange(table.samples), taken(table, part.prices)]).all()
    assert tariff.predicted is not None and math.isfinite(tariff.predicted.seconds)


# --- FastFlow ------------------------------------------------------------------------------------------------

speeds = st.floats(0.1, 1e4)


@quick
@given(st.integers(1, 500), speeds, st.lists(st.tuples(speeds, st.floats(0, 1)), min_size=6, max_size=6))
def test_fastflow_ends_and_never_offloads_what_was_not_faster(
    samples: int, gpu: float, windows: list[tuple[float, float]]
) -> None:
    policy = FastFlow(cuts=[1, 2, 4])
    facts = Facts(samples, Rates(gpu, 1e6, 1, 1), None, 4, 2, 0.0)
    trials: list[Trial] = []
    while (plan := policy.next_trial(trials, facts)) is not None:
        assert len(trials) < 5
        trials.append(Trial.of(plan, *windows[len(trials)]))
    plan = policy.decide(trials, facts)
    if plan.counts() != {FILE: samples}:
        assert trials[-1].samples_s >= 1.05 * trials[0].samples_s or trials[-1].share == 1.0
        assert gpu / trials[0].samples_s > 1.3
        (offloaded,) = set(plan.counts()) - {FILE}
        assert offloaded in {Choice(1, "pixels"), Choice(2, "pixels"), Choice(4, "pixels")}
        ran = [t for t in trials if t.choice == offloaded]
        assert ran[-1].samples_s >= 1.05 * trials[0].samples_s


@quick
@given(st.integers(0, 3000), st.floats(0, 1), st.floats(0, 1))
def test_spread_is_exact_and_nested(samples: int, one: float, other: float) -> None:
    small, large = sorted((one, other))
    few, many = spread(samples, small), spread(samples, large)
    assert np.count_nonzero(few) == round(small * samples)
    assert (many | ~few).all()
