"""What the resources give at this moment: each row of the table in auto/conditions.py, played through."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.auto.conditions import (
    BORNE_UNSEEN,
    DOUBTED_FOR,
    GROWTH,
    HELD_FIRST,
    HELD_MOST,
    LEAST_WIRE_BYTES_S,
    LIKELY_WIRE_BYTES_S,
    MAX_GROWTH,
    MAX_WIRE_BYTES_S,
    MIN_WORK_S,
    MUST_GAIN,
    PATIENCE_MOST,
    RECOVERY,
    Conditions,
    Guard,
    MeasuredWindow,
)
from sophon_loader.decide.cost import EpochTime
from sophon_loader.decide.facts import Rates
from sophon_loader.decide.tariff import FILES, Part, Prices, Tariff
from tests.support.drawn import examples

MBIT = 1e6 / 8
FIRST = Conditions.at_first(loader_cores=2.0, agent_cores=4.0)


def window(**changed: Any) -> MeasuredWindow:
    """A second of two processes that have all the CPU they ask for, and of which neither waited for a reply."""
    usual: dict[str, Any] = {
        "seconds": 1.0, "processes": 2, "samples": 300, "wire_bytes": 10e6, "waited_s": 0.0, "busy_s": 1.0,
        "loader_cpu_s": 1.0, "work_cpu_s": 1.0, "work_s": 1.0, "upkeep_s": 0.0, "agent_cpu_s": 1.1,
        "read_bytes": 30e6, "read_s": 0.1, "fresh": 0, "net_s": 0.0, "queued_s": 0.0,
        "gpu_samples_s": math.inf, "agent_cores": 4.0, "shortest_net_s": 0.0005,
    }  # fmt: skip
    return MeasuredWindow(**(usual | changed))


def on_the_wire(bytes_s: float, **changed: Any) -> MeasuredWindow:
    """Workers wait for replies that lie behind others: the wire is busy all the time, and gives this."""
    return window(**({"wire_bytes": bytes_s, "waited_s": 1.0, "fresh": 100, "net_s": 100 * 0.02} | changed))


def after(conditions: Conditions, *windows: MeasuredWindow) -> Conditions:
    for one in windows:
        conditions = conditions.after(one)
    return conditions


def near(found: float, wanted: float, share: float = 0.1) -> bool:
    return abs(found - wanted) <= share * wanted


@pytest.mark.parametrize("quota", [0.01, 0.05, 0.5])
@pytest.mark.parametrize("got", [1.0, 2.0])
def test_a_quota_of_the_agent_is_counted_once(quota: float, got: float) -> None:
    """It stands in the cores that are promised, and shows in what work gets of a core: in all of it, or less."""
    under = {"agent_cores": quota, "per_worker": quota, "work_cpu_s": 0.1, "work_s": 0.1 / min(1.0, got * quota)}
    now = after(FIRST, *[window(**under)] * 6)
    assert now.rates.agent_cores == pytest.approx(quota) and now.per_worker == quota
    assert now.after(window(per_worker=1.0, work_cpu_s=0.0, work_s=0.0)).rates.agent_cores == 4.0, "back at once"


def test_what_others_take_beside_a_quota_is_missing() -> None:
    """Two workers with half a core together, of which work gets a half."""
    half = window(agent_cores=0.5, per_worker=0.25, work_cpu_s=0.1, work_s=0.8)
    assert near(after(FIRST, *[half] * 6).rates.agent_cores, 0.25)


# --- at first -------------------------------------------------------------------------------------------------


def test_nothing_is_known_at_first() -> None:
    assert FIRST.rates == Rates(math.inf, LIKELY_WIRE_BYTES_S, 2.0, 4.0) and not FIRST.wire_seen
    assert FIRST.disk_bytes_s == math.inf and FIRST.agent_speed == 1.0
    assert Conditions.at_first(1.0, 0.0).rates.agent_cores > 0, "an agent without cores is still one"


def test_the_wire_of_an_earlier_run() -> None:
    known = FIRST.with_wire(5e6)
    assert known.rates.wire_bytes_s == 5e6 and known.wire_seen and known.growth == GROWTH
    for none in (0.0, -1.0, math.inf, math.nan):
        assert FIRST.with_wire(none) == FIRST


def test_what_no_window_shows_stays_unknown() -> None:
    now = after(FIRST, *[window(wire_bytes=0.0, read_s=0.0, read_bytes=0.0)] * 20)
    assert not now.wire_seen and now.disk_bytes_s == math.inf and now.rates.gpu_samples_s == math.inf


def test_before_the_wire_has_held_anything_up_it_is_believed_to_bear_twice_what_crosses_it() -> None:
    now = FIRST.after(window(wire_bytes=10e6))
    assert now.rates.wire_bytes_s == BORNE_UNSEEN * 10e6 and not now.wire_seen and now.growth == GROWTH
    assert now.after(on_the_wire(3e6)).rates.wire_bytes_s == 3e6, "a guess has no weight"
    for _ in range(7):
        now = now.after(window(wire_bytes=now.rates.wire_bytes_s))
    assert now.rates.wire_bytes_s > 100 * LIKELY_WIRE_BYTES_S, "a plan that wants a wide wire finds it soon"


def test_a_wire_that_nobody_has_seen_is_believed_in_less_while_what_is_offloaded_hardly_uses_it() -> None:
    now, hardly = FIRST, window(wire_bytes=0.1e6)
    for _ in range(30):
        before = now.rates.wire_bytes_s
        now = now.after(hardly)
        assert before / RECOVERY <= now.rates.wire_bytes_s * (1 + 1e-9), "slowly: a window may be unlike others"
    assert now.rates.wire_bytes_s == BORNE_UNSEEN * 0.1e6
    assert after(now, *[window(wire_bytes=1.0)] * 30).rates.wire_bytes_s == LEAST_WIRE_BYTES_S
    assert after(now, *[window(wire_bytes=1e300)] * 2).rates.wire_bytes_s == MAX_WIRE_BYTES_S
    files_only = window(wire_bytes=0.0, work_cpu_s=0.0)
    assert after(now, *[files_only] * 30).rates.wire_bytes_s == now.rates.wire_bytes_s, "that shows nothing of it"


@pytest.mark.parametrize("changed", [{"samples": 0}, {"seconds": 0.0}, {"samples": 0, "seconds": 0.0}])
def test_a_window_without_samples_changes_nothing(changed: dict[str, Any]) -> None:
    now = after(FIRST, on_the_wire(100 * MBIT), window(work_s=3.0))
    assert now.after(on_the_wire(7.0, agent_cores=0.1, loader_cpu_s=0.02, **changed)) == now


# --- GPU ------------------------------------------------------------------------------------------------------


def test_the_training_step_s_rate_is_taken_as_it_is() -> None:
    now = FIRST.after(window(gpu_samples_s=120.0))
    assert now.rates.gpu_samples_s == 120.0
    assert now.after(window()).rates.gpu_samples_s == math.inf, "not known any more: of another loop, say"


# --- the loader's cores ---------------------------------------------------------------------------------------


def test_another_program_on_the_loader_s_core_comes_and_goes() -> None:
    shared = [window(processes=1, busy_s=0.9, loader_cpu_s=0.45)] * 4
    alone = [window(processes=1, busy_s=0.9, loader_cpu_s=0.9)] * 4
    now = Conditions.at_first(1.0, 4.0).after(alone[0])
    assert now.rates.loader_cores == 1.0
    now = after(now, *shared)
    assert near(now.rates.loader_cores, 0.5)
    now = after(now, *alone)
    assert near(now.rates.loader_cores, 1.0)


def test_the_loader_s_cores_do_not_depend_on_how_busy_it_is() -> None:
    """A plan that leaves it little to do says nothing about what it could do."""
    for busy_s in (0.05, 0.4, 2.0):
        assert FIRST.after(window(busy_s=busy_s, loader_cpu_s=busy_s)).rates.loader_cores == 2.0


@pytest.mark.parametrize(("busy_s", "waited_s", "awaited", "cores"), [
    (2.0, 0.0, 1.0, 2.0), (1.8, 0.0, 1.0, 1.8), (1.0, 0.8, 1.0, 1.8), (1.0, 0.0, 0.0, 2.0), (1.0, 0.0, 0.5, 1.5),
    (0.5, 1.6, 1.0, 2.0),
])  # fmt: skip
def test_what_workers_idle_is_lost_while_the_training_waits(
    busy_s: float, waited_s: float, awaited: float, cores: float
) -> None:
    """It is not where the training keeps them: then there is nothing to be done."""
    one = window(busy_s=busy_s, loader_cpu_s=busy_s, waited_s=waited_s, awaited=awaited)
    assert one.loader_cores == pytest.approx(cores)


def test_no_more_cores_than_it_may_use() -> None:
    one = replace(FIRST, max_loader_cores=1.0)
    assert after(one, *[window()] * 20).rates.loader_cores == pytest.approx(1.0)
    assert FIRST.after(window(busy_s=0.5, loader_cpu_s=2.0)).rates.loader_cores == 2.0, "clocks differ a little"


@pytest.mark.parametrize("changed", [{"loader_cpu_s": MIN_WORK_S}, {"loader_cpu_s": 0.0}, {"busy_s": 0.0}])
def test_too_little_work_shows_nothing_of_the_loader_s_cores(changed: dict[str, Any]) -> None:
    now = FIRST.after(window(loader_cpu_s=0.5))
    assert now.after(window(**changed)).rates.loader_cores == now.rates.loader_cores


# --- the agent's cores ----------------------------------------------------------------------------------------


def test_the_agent_s_quota_goes_down_and_up() -> None:
    """It says so itself, so a single window is enough."""
    now = FIRST
    for cores in (4.0, 0.05, 4.0, 1.0):
        now = now.after(window(agent_cores=cores))
        assert now.rates.agent_cores == pytest.approx(cores)


def test_another_program_on_the_agent_s_cores_comes_and_goes() -> None:
    now = after(FIRST, *[window(work_cpu_s=0.3, work_s=1.2)] * 4)
    assert near(now.rates.agent_cores, 1.0, 0.2) and near(now.agent_speed, 0.25, 0.2)
    now = after(now, *[window(work_cpu_s=0.3, work_s=0.3)] * 4)
    assert near(now.rates.agent_cores, 4.0)


def test_an_agent_that_is_not_used_is_believed_to_come_back() -> None:
    now = after(FIRST, *[window(work_cpu_s=0.1, work_s=2.0)] * 10)
    low = now.rates.agent_cores
    assert near(low, 0.2)
    idle = window(work_cpu_s=0.0, work_s=0.0)
    once = now.after(idle)
    assert once.rates.agent_cores == pytest.approx(RECOVERY * low)
    assert after(now, *[idle] * 40).rates.agent_cores == 4.0, "and no further than what it promises"


def test_an_agent_that_says_nothing_keeps_its_cores() -> None:
    now = FIRST.after(window(agent_cores=2.0))
    assert now.after(window(agent_cores=0.0, work_cpu_s=0.0, work_s=0.0)).rates.agent_cores == 2.0


def test_the_agent_s_own_upkeep_is_not_lost_to_others() -> None:
    """It runs on the same cores, between the clock's two readings."""
    with_upkeep = after(FIRST, *[window(work_cpu_s=0.6, upkeep_s=0.3, work_s=0.9)] * 9)
    without = after(FIRST, *[window(work_cpu_s=0.6, upkeep_s=0.0, work_s=0.9)] * 9)
    assert near(without.rates.agent_cores, 4 * 2 / 3) and near(with_upkeep.rates.agent_cores, 4.0, 0.15)


def test_a_clock_that_runs_ahead_gives_no_more_than_all_cores() -> None:
    assert FIRST.after(window(work_cpu_s=1.0, work_s=0.5)).rates.agent_cores == 4.0


# --- the disk of the agent ------------------------------------------------------------------------------------


def test_the_agent_s_disk() -> None:
    now = FIRST.after(window(read_bytes=30e6, read_s=0.3))
    assert now.disk_bytes_s == pytest.approx(100e6)
    now = after(now, *[window(read_bytes=10e6, read_s=1.0)] * 6)
    assert near(now.disk_bytes_s, 10e6)
    assert after(now, *[window(read_bytes=0.0, read_s=0.0)] * 3).disk_bytes_s == now.disk_bytes_s
    assert near(after(now, *[window(read_bytes=100e6, read_s=1.0)] * 6).disk_bytes_s, 100e6)


def test_readers_that_wait_side_by_side_share_the_disk() -> None:
    assert FIRST.after(window(read_bytes=10e6, read_s=4.0)).disk_bytes_s == pytest.approx(10e6), "4 of them, for 1 s"


def test_reads_that_wait_for_cpu_say_nothing_of_the_disk() -> None:
    """An agent of 0.02 cores is stopped for 98 ms of 100, in the middle of reads, too."""
    starved = window(agent_cores=0.02, agent_cpu_s=0.019, read_bytes=3e6, read_s=2.0)
    assert after(FIRST, *[starved] * 6).disk_bytes_s == math.inf
    slow = FIRST.after(window(read_bytes=2e6, read_s=1.0))
    assert slow.disk_bytes_s == 2e6
    assert slow.after(starved).disk_bytes_s == 3e6, "that is what it gave, at least"
    spare = window(agent_cores=0.2, agent_cpu_s=0.1, read_bytes=3e6, read_s=2.0)
    assert FIRST.after(spare).disk_bytes_s == 3e6


def test_of_next_to_no_cpu_nobody_can_tell_that_some_was_to_spare() -> None:
    """0.012 cores are a millisecond in each period of a quota: a batch more or less in the window decides."""
    odd = window(agent_cores=0.012, agent_cpu_s=0.008, read_bytes=2e6, read_s=2.0)
    assert FIRST.after(odd).disk_bytes_s == math.inf
    assert FIRST.after(replace(odd, agent_cores=0.12, agent_cpu_s=0.08)).disk_bytes_s == 2e6


def test_a_disk_that_nothing_shows_any_more_is_believed_to_come_back() -> None:
    """One odd window of an agent that has no CPU to spare is not the last word on its disk."""
    odd = FIRST.after(window(agent_cores=0.2, agent_cpu_s=0.1, read_bytes=3e6, read_s=2.0))
    starved = window(agent_cores=0.02, agent_cpu_s=0.019, read_bytes=3e6, read_s=2.0)
    assert after(odd, starved).disk_bytes_s == pytest.approx(RECOVERY * odd.disk_bytes_s)
    assert after(odd, *[starved] * 20).disk_bytes_s > 10 * odd.disk_bytes_s


# --- the wire -------------------------------------------------------------------------------------------------


def test_a_wire_that_is_waited_for_gives_what_it_gave() -> None:
    assert FIRST.after(on_the_wire(100 * MBIT)).rates.wire_bytes_s == 100 * MBIT


def test_a_link_that_changes_is_found_within_four_windows() -> None:
    now = after(FIRST, *[on_the_wire(100 * MBIT)] * 3)
    assert near(now.rates.wire_bytes_s, 100 * MBIT)
    now = after(now, *[on_the_wire(20 * MBIT)] * 4)
    assert near(now.rates.wire_bytes_s, 20 * MBIT, 0.12)
    now = after(now, on_the_wire(200 * MBIT))
    assert near(now.rates.wire_bytes_s, 200 * MBIT), "more than it was thought to bear is seen at once"


@pytest.mark.parametrize("idle_s", [1, 10, 600, 4000])
def test_however_long_the_wire_was_not_waited_for_it_is_found_within_eight_windows(idle_s: int) -> None:
    """As while the training step is slow: what has not crossed it has not been borne."""
    now = FIRST.after(on_the_wire(100 * MBIT))
    for _ in range(idle_s):
        now = now.after(window(wire_bytes=1e6))
    assert now.rates.wire_bytes_s == 100 * MBIT and now.growth == GROWTH
    assert near(after(now, *[on_the_wire(25 * MBIT)] * 8).rates.wire_bytes_s, 25 * MBIT)


@pytest.mark.parametrize("share", [0.6, 0.9])
def test_a_wire_that_has_grown_wider_is_used_up_to_its_width(share: float) -> None:
    """A plan never uses all that it may; while it uses over half, that is no reason to stay below what there is."""
    now = FIRST.after(on_the_wire(20 * MBIT))
    for _ in range(40):
        now = now.after(window(wire_bytes=share * now.rates.wire_bytes_s))
    assert now.rates.wire_bytes_s > 1000 * MBIT


def test_a_wire_that_is_not_filled_is_tried_carefully() -> None:
    now = FIRST.after(on_the_wire(1e6))
    assert now.growth == GROWTH
    tried, found = [], now.rates.wire_bytes_s
    for _ in range(9):
        now = now.after(window(wire_bytes=now.rates.wire_bytes_s))
        tried.append(now.rates.wire_bytes_s / found - 1)
        found = now.rates.wire_bytes_s
    assert tried == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, MAX_GROWTH, MAX_GROWTH])
    assert now.after(on_the_wire(1e6)).growth == GROWTH, "begins anew once it was waited for"


def test_a_wire_that_bears_more_is_believed_to() -> None:
    now = FIRST.after(on_the_wire(1e6)).after(window(wire_bytes=5e6))
    assert now.rates.wire_bytes_s == 5e6


@pytest.mark.parametrize("changed", [
    {"waited_s": 0.1},  # of two seconds of two workers: they had something to do
    {"net_s": 100 * 0.004},  # no reply lay behind others
    {"fresh": 0, "net_s": 0.0},
    {"net_s": 100 * 0.1, "shortest_net_s": 0.08},  # a long way, and nobody before them
    {"queued_s": 100 * 0.03},  # they lay at the agent for longer
])  # fmt: skip
def test_a_wire_that_did_not_hold_anybody_up_shows_no_limit(changed: dict[str, Any]) -> None:
    assert not FIRST.after(on_the_wire(1e6, **changed)).wire_seen
    known = FIRST.after(on_the_wire(10e6))
    assert known.after(on_the_wire(1e6, **changed)).rates.wire_bytes_s == 10e6
    assert known.after(on_the_wire(9e6, **changed)).rates.wire_bytes_s == pytest.approx(10e6 * (1 + GROWTH))


def test_a_window_s_waiting_is_a_share_of_all_workers_time() -> None:
    assert window(seconds=2.0, processes=4, waited_s=2.0).waiting == 0.25


# --- never a rate that is none --------------------------------------------------------------------------------

amounts = st.floats(0, 1e12) | st.sampled_from([0.0, 1e-300, 5e-324, 1.0])
seconds = st.floats(0, 1e6) | st.sampled_from([0.0, 1e-9, 1e-300])
times = ("seconds", "waited_s", "busy_s", "loader_cpu_s", "work_cpu_s", "work_s", "upkeep_s", "read_s", "net_s")
windows = st.builds(
    MeasuredWindow,
    processes=st.integers(1, 64),
    samples=st.integers(0, 10**6),
    wire_bytes=amounts,
    read_bytes=st.integers(0, 10**12),
    fresh=st.integers(0, 1000),
    gpu_samples_s=st.floats(1e-3, 1e9) | st.just(math.inf),
    agent_cores=st.floats(0, 1e6),
    shortest_net_s=seconds | st.just(math.inf),
    queued_s=seconds,
    **dict.fromkeys(times, seconds),
)


@examples(300)
@given(st.lists(windows, min_size=1, max_size=30), st.floats(0.1, 64), st.floats(0, 64))
def test_no_window_makes_a_rate_that_is_none(
    some: list[MeasuredWindow], loader_cores: float, agent_cores: float
) -> None:
    now = Conditions.at_first(loader_cores, agent_cores)
    for one in some:
        now = now.after(one)
        values = {field.name: getattr(now.rates, field.name) for field in fields(Rates)}
        assert all(value > 0 for value in values.values()), values
        assert math.isfinite(values["loader_cores"]) and math.isfinite(values["agent_cores"])
        assert values["loader_cores"] <= loader_cores * (1 + 1e-9)
        assert math.isfinite(values["wire_bytes_s"])
        assert now.disk_bytes_s > 0 and 0 < now.agent_speed <= 1 and 0 < now.growth <= MAX_GROWTH


# --- the guard ------------------------------------------------------------------------------------------------

FILES_S = 100.0
"""What not offloading gives, by the model, in samples/s."""
ROWS = 64


def tariff(promised: float = 1.0) -> Tariff:
    """One that offloads, by a model that promises so many times what it expects of not offloading."""
    without, predicted = (EpochTime(0.0, ROWS / rate, 0.0, 0.0) for rate in (FILES_S, FILES_S * promised))
    return Tariff((Part(1.0, Prices(1.0, 1.0, 1.0)),), "", predicted, without)


def play(guard: Guard, *samples_s: float, promised: float = 1.0) -> list[bool]:
    """Whether files must be asked for after each window."""
    found = []
    for one in samples_s:
        guard.after(one, tariff(promised), ROWS)
        found.append(guard.must_not_offload)
    return found


def test_a_tariff_that_keeps_its_promise_is_followed() -> None:
    assert not any(play(Guard(), *[FILES_S] * 20))


def test_a_pause_of_the_training_is_no_reason_to_doubt() -> None:
    few = [1.0] * (DOUBTED_FOR - 1)
    assert not any(play(Guard(), *few, FILES_S, *few, FILES_S))


def test_a_tariff_that_gives_less_than_files_should_is_left_for_files() -> None:
    guard = Guard()
    assert play(guard, *[50.0] * DOUBTED_FOR) == [False] * (DOUBTED_FOR - 1) + [True]
    assert play(guard, *[FILES_S] * HELD_FIRST) == [True] * (HELD_FIRST - 1) + [False]


def held(guard: Guard, with_s: float, without_s: float) -> int:
    """The windows for which files are asked for, once the tariff is doubted."""
    doubted(guard, with_s)
    found = 0
    while guard.must_not_offload:
        play(guard, without_s)
        found += 1
    return found


def doubted(guard: Guard, with_s: float) -> int:
    """The windows until it is."""
    found = 0
    while not guard.must_not_offload:
        play(guard, with_s)
        found += 1
    return found


def test_where_files_are_better_they_are_kept_for_longer_each_time() -> None:
    guard = Guard()
    assert [held(guard, 50.0, 100.0) for _ in range(9)] == [min(HELD_FIRST * 2**n, HELD_MOST) for n in range(9)]


def test_where_files_are_no_better_the_tariff_is_doubted_more_rarely() -> None:
    """The model was wrong about files."""
    guard = Guard()
    found = []
    for _ in range(7):
        found.append(doubted(guard, 50.0))
        assert held(guard, 50.0, 50.0 * MUST_GAIN * 0.999) == HELD_FIRST
    assert found == [min(DOUBTED_FOR * 2**n, PATIENCE_MOST) for n in range(7)]


def test_replies_that_were_asked_for_before_do_not_speak_for_files() -> None:
    """The first window of files still has what went out at the tariff."""
    guard = Guard()
    doubted(guard, 50.0)
    play(guard, 5000.0, *[50.0] * (HELD_FIRST - 1))
    assert doubted(guard, 50.0) == 2 * DOUBTED_FOR, "so they were found to be no better"


def test_a_tariff_that_promises_far_more_than_the_one_that_was_doubted_is_followed_at_once() -> None:
    """A disk that limited everything is fast again: the windows of files that are left would be lost."""
    guard = Guard()
    for _ in range(6):
        held(guard, 50.0, 100.0)
    doubted(guard, 50.0)
    assert play(guard, *[FILES_S] * 3, promised=1.2) == [True] * 3
    assert play(guard, FILES_S, promised=2.6) == [False]
    assert not any(play(guard, *[2.6 * FILES_S] * 20, promised=2.6))


def test_a_promise_that_was_broken_is_not_believed_again() -> None:
    """While nothing runs at an agent, its cores are believed to come back."""
    guard = Guard()
    doubted(guard, 50.0)
    assert play(guard, FILES_S, promised=2.0) == [False]
    assert doubted(guard, 50.0) == DOUBTED_FOR
    assert play(guard, FILES_S, promised=2.0) == [True]
    assert play(guard, FILES_S, promised=2.7) == [False]


def test_files_are_not_doubted() -> None:
    guard = Guard()
    for _ in range(20):
        guard.after(1.0, Tariff((FILES,), ""), ROWS)
        guard.after(1.0, Tariff((Part(1.0, Prices(1.0, 1.0, 1.0)),), ""), ROWS)  # before anything is known
    assert not guard.must_not_offload
