"""Which agent is a key's home, and when another is asked in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon_loader.fleet.homes import BOUND, MOST, Homes, connected
from tests.support.drawn import examples

KEYS = [f"n{number % 50:08}/n{number % 50:08}_{number}.JPEG" for number in range(4000)]


def homes(count: int, weights: list[float] | None = None) -> Homes:
    found = Homes([f"tcp://host{number}:5555/photos" for number in range(count)])
    if weights is not None:
        found.weights = weights
    return found


def all_of(them: Homes) -> list[int]:
    return [them.order(key)[0] for key in KEYS]


@examples(30)
@given(weights=st.lists(st.floats(0.2, 3.0), min_size=2, max_size=6))
def test_shares_are_as_the_weights(weights: list[float]) -> None:
    counted = Counter(all_of(homes(len(weights), weights)))
    for number, weight in enumerate(weights):
        assert counted[number] / len(KEYS) == pytest.approx(weight / sum(weights), abs=0.04)


@examples(30)
@given(weights=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5), agent=st.integers(0, 4), factor=st.floats(0.5, 2))
def test_a_weight_that_changes_moves_its_share_of_the_keys(weights: list[float], agent: int, factor: float) -> None:
    agent %= len(weights)
    changed = [weight * (factor if number == agent else 1.0) for number, weight in enumerate(weights)]
    before, after = all_of(homes(len(weights), weights)), all_of(homes(len(weights), changed))
    moved = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
    d = abs(weights[agent] / sum(weights) - changed[agent] / sum(changed))
    assert len(moved) / len(KEYS) <= d + 0.03
    assert all(agent in pair for pair in moved), "no key moves between agents whose weight is as before"


def test_the_keys_of_an_agent_that_has_gone_go_to_the_next_in_their_own_order() -> None:
    them = homes(4)
    dealt = them.deal(KEYS, [0] * 4, lambda number: number != 2)
    spread = Counter(number for number, home in zip(dealt, all_of(them), strict=True) if home == 2)
    assert set(spread) == {0, 1, 3} and min(spread.values()) > 0.25 * sum(spread.values())


def test_who_lacks_a_key_is_not_asked_for_it() -> None:
    them = homes(3)
    avoid = [{number % 3} for number in range(len(KEYS))]
    dealt = them.deal(KEYS, [0] * 3, lambda _: True, avoid)
    assert all(number not in lacking for number, lacking in zip(dealt, avoid, strict=True))
    alone = [{0, 2} if number % 10 else set() for number in range(len(KEYS))]
    counts = Counter(them.deal(KEYS, [0] * 3, lambda _: True, alone))
    assert counts[1] >= 0.9 * len(KEYS), "its bound does not matter where no other has it"


def test_an_agent_without_weight_is_nobodys_home() -> None:
    assert 1 not in all_of(homes(3, [1.0, 0.0, 1.0]))
    assert set(homes(2, [0.0, 1.0]).deal(KEYS[:10], [0, 0], lambda number: number == 0)) == {0}, "unless no other may"


@examples(100)
@given(
    waiting=st.lists(st.integers(0, 200), min_size=2, max_size=6),
    first=st.integers(0, 3900),
    count=st.integers(1, 64),
)
def test_no_agent_gets_much_more_than_its_share(waiting: list[int], first: int, count: int) -> None:
    dealt = homes(len(waiting)).deal(KEYS[first : first + count], waiting, lambda _: True)
    mean = (count + sum(waiting)) / len(waiting)
    for number, more in Counter(dealt).items():
        assert waiting[number] + more <= BOUND * mean + 1


def test_what_is_too_much_goes_to_the_next_in_the_keys_order_and_not_to_the_shortest_queue() -> None:
    them = homes(4)
    waiting = [60, 30, 20, 0]
    keys = [key for key in KEYS if them.order(key)[0] == 0][:10]
    assert them.deal(keys, waiting, lambda _: True) == [them.order(key)[1] for key in keys]
    assert 3 in (order := [them.order(key)[1] for key in keys]) and 1 in order


@pytest.mark.parametrize("count", [2, 4])
def test_an_idle_fleet_keeps_homes(count: int) -> None:
    them = homes(count)
    kept = total = 0
    for first in range(0, len(KEYS), 64):
        keys = KEYS[first : first + 64]
        dealt = them.deal(keys, [0] * count, lambda _: True)
        kept += sum(number == them.order(key)[0] for number, key in zip(dealt, keys, strict=True))
        total += len(keys)
    assert kept / total > 0.95
    assert them.deal(KEYS[:1], [0] * count, lambda _: True) == [them.order(KEYS[0])[0]]


def test_every_process_has_the_same_order() -> None:
    code = (
        "from sophon_loader.fleet.homes import Homes\n"
        "homes = Homes([f'tcp://host{number}:5555/photos' for number in range(5)])\n"
        "print([homes.order(f'a/{number}.jpg') for number in range(40)])"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{[homes(5).order(f'a/{number}.jpg') for number in range(40)]}\n"}


def test_a_name_that_is_no_utf8_has_a_home() -> None:
    assert sorted(homes(3).order("a\udcff.jpg")) == [0, 1, 2]


@examples(200)
@given(agents=st.integers(1, 100), workers=st.integers(1, 24))
def test_of_many_agents_a_worker_is_connected_to_some_and_all_workers_to_all_alike(agents: int, workers: int) -> None:
    each = [connected(agents, worker, workers) for worker in range(workers)]
    spread = Counter(number for numbers in each for number in numbers)
    assert set(spread) == set(range(agents)) and max(spread.values()) - min(spread.values()) <= 1
    for numbers in each:
        assert len(set(numbers)) == len(numbers) == min(agents, max(MOST, -(-agents // workers)))
