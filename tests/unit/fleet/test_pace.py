"""How fast an agent is seen to be, and what share it gets."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.fleet.pace import LEAST, Pace, too_much, weights
from tests.support.drawn import examples


@examples(100)
@given(st.lists(st.none() | st.floats(1e-6, 1e6), min_size=1, max_size=8))
def test_weights(rates: list[float | None]) -> None:
    found = weights(rates)
    assert all(LEAST <= weight <= 1.0 for weight in found) and max(found) == 1.0
    known = [(rate, weight) for rate, weight in zip(rates, found, strict=True) if rate is not None]
    best = max((rate for rate, _ in known), default=0.0)
    for rate, weight in known:
        assert weight == pytest.approx(max(LEAST, rate / best))
    assert all(weight == 1.0 for rate, weight in zip(rates, found, strict=True) if rate is None)


@examples(100)
@given(rate=st.floats(5.0, 500.0), pauses_s=st.lists(st.floats(0.001, 0.2), min_size=60, max_size=100))
def test_an_agent_that_always_has_requests_is_as_fast_as_it_is_however_seldom_it_is_looked_at(
    rate: float, pauses_s: list[float]
) -> None:
    pace, now_s = Pace(), 100.0
    pace.see(now_s, 8, 0, just_now=False)
    for pause_s in pauses_s:
        now_s += pause_s
        pace.see(now_s, 8, int(rate * (now_s - 100.0)), just_now=False)
    if now_s - 100.0 > 3.0:
        assert pace.rate is not None and pace.rate == pytest.approx(rate, rel=0.05, abs=1.5)


def test_what_came_while_the_worker_did_something_else_says_nothing() -> None:
    pace = Pace()
    for batch in range(20):
        pace.see(float(batch), 32, 32 * batch, just_now=False)
        pace.see(batch + 0.9, 0, 32 * batch + 32, just_now=False)
    assert pace.rate is None


def test_short_bursts_count_where_they_are_waited_for() -> None:
    pace = Pace()
    for batch in range(20):
        pace.see(float(batch), 2, 2 * batch, just_now=False)
        pace.see(batch + 0.02, 0, 2 * batch + 2, just_now=True)
        pace.see(batch + 0.9, 0, 2 * batch + 2, just_now=False)
    assert pace.rate is not None and pace.rate > 90.0, "as fast as it answers, not as seldom as it is asked"


def test_one_that_is_so_fast_that_it_is_hardly_waited_for() -> None:
    fast, slow = Pace(), Pace()
    for number in range(10):
        for pace, answers in ((fast, number), (slow, number // 5)):
            pace.see(number / 10, 2, answers, just_now=False)
            pace.see(number / 10 + 0.002, 1, answers + (pace is fast), just_now=pace is fast)
            pace.see(number / 10 + 0.05, int(pace is slow), answers + (pace is fast), just_now=False)
    assert weights([fast.rate, slow.rate]) == [1.0, LEAST], (fast.rate, slow.rate)


def test_one_that_falls_silent_falls_to_the_least_and_rises_again_within_seconds() -> None:
    pace, now_s, answers = Pace(), 0.0, 0
    seen: dict[float, float | None] = {}
    for rate in (100.0, 0.0, 100.0):
        for _ in range(80):
            pace.see(now_s, 8, answers, just_now=False)
            now_s, answers = now_s + 0.1, answers + round(rate * 0.1)
            seen[round(now_s, 1)] = pace.rate
    assert weights([100.0, seen[16.0]]) == [1.0, LEAST]
    back = seen[18.0]
    assert back is not None and back > 50.0


def test_nothing_is_known_at_first() -> None:
    pace = Pace()
    assert pace.rate is None and weights([pace.rate, 50.0]) == [1.0, 1.0]
    pace.see(0.0, 8, 0, just_now=False)
    pace.see(0.05, 8, 0, just_now=False)
    assert pace.rate is None
    pace.see(0.5, 8, 0, just_now=False)
    assert pace.rate is not None and math.isfinite(pace.rate)


@examples(200)
@given(
    owed=st.integers(0, 512),
    ignored=st.integers(0, 64),
    rate=st.none() | st.floats(0.01, 1e4),
    idle_rate=st.floats(0.0, 1e4),
)
def test_what_others_take_over(owed: int, ignored: int, rate: float | None, idle_rate: float) -> None:
    count = too_much(owed, owed + ignored, rate, idle_rate)
    assert 0 <= count <= owed
    if count:
        assert rate is not None and idle_rate >= 3 * rate, "of unlike agents alone"
        saved = (owed + ignored) / rate - max(count / idle_rate, (owed - count) / rate)
        assert saved >= 0.1, "it saves time, where it comes behind what nobody waits for any more"
    assert too_much(1, 1, 0.5, 40.0) == 1, "the last one, too"


def test_what_comes_behind_answers_that_nobody_waits_for_is_taken_over_at_once() -> None:
    """As beside an agent of a tenth in the first batches: it still owed one sample, and 30 others were on its wire."""
    assert not too_much(1, 1, 4.8, 36.8)
    assert too_much(1, 31, 4.8, 36.8) == 1
    assert not too_much(0, 31, 4.8, 36.8)


def test_who_has_fallen_silent_loses_what_it_owes_within_a_second() -> None:
    pace = Pace()
    for number in range(50):
        pace.see(number / 50, 8, number, just_now=False)
    assert not too_much(8, 8, pace.rate, 60.0)
    pace.see(3.0, 8, 49, just_now=False)
    assert too_much(8, 8, pace.rate, 60.0)
