"""Turns by cost: shares of who always has something waiting, and a plain model of what waits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage_agent.jobs.turns import Turns
from tests.support.drawn import examples

CLIENTS = [b"a", b"b", b"c"]


def _served(turns: Turns[str], most: int, costs: dict[bytes, float] | None = None) -> list[tuple[bytes, str]]:
    served = []
    for _ in range(most):
        turn = turns.pop()
        if turn is None:
            break
        turns.spent(turn[0], 1.0 if costs is None else costs[turn[0]])
        served.append(turn)
    return served


def test_a_large_request_does_not_starve_a_small_one() -> None:
    turns: Turns[str] = Turns()
    for n in range(500):
        turns.push(b"large", f"large {n}")
    assert _served(turns, 1) == [(b"large", "large 0")]
    for client in (b"small", b"other"):
        for n in range(2):
            turns.push(client, f"{client.decode()} {n}")
    served = Counter(client for client, _ in _served(turns, 6))
    assert served == {b"small": 2, b"other": 2, b"large": 2}


@pytest.mark.parametrize("cost", [3.0, 30.0, 0.3])
def test_seconds_are_shared_and_not_samples(cost: float) -> None:
    turns: Turns[str] = Turns()
    costs = {b"dear": cost, b"cheap": 1.0}
    for client in costs:
        for n in range(2000):
            turns.push(client, f"{n}")
    had: Counter[bytes] = Counter()
    for client, _ in _served(turns, 600, costs):
        had[client] += costs[client]  # type: ignore[assignment]
    assert had[b"dear"] == pytest.approx(had[b"cheap"], abs=2 * max(costs.values()))


def test_a_small_window_gets_what_it_can_use_beside_large_ones() -> None:
    """47 clients with 512 waiting each, and one with 8, which asks again when a round trip is over."""
    turns: Turns[str] = Turns()
    rng = random.Random(3)
    for n in range(47):
        for _ in range(512):
            turns.push(b"%d" % n, "a job")
    for _ in range(8):
        turns.push(b"small", "a job")
    had: Counter[bytes] = Counter()
    back: list[int] = []
    for now in range(48 * 100):
        while back and back[0] <= now:
            back.pop(0)
            turns.push(b"small", "a job")
        turn = turns.pop()
        assert turn is not None
        client = turn[0]
        turns.spent(client, rng.uniform(0.5, 1.5))
        had[client] += 1
        if client == b"small":
            back.append(now + 20)
    assert had.pop(b"small") > 90 and min(had.values()) > 80


def test_who_was_away_has_saved_nothing_up() -> None:
    turns: Turns[str] = Turns()
    for n in range(100):
        turns.push(b"busy", f"{n}")
    _served(turns, 50)
    for n in range(50):
        turns.push(b"late", f"{n}")
    served = Counter(client for client, _ in _served(turns, 20))
    assert served[b"busy"] == pytest.approx(10, abs=1)


def test_until_a_cost_is_known_the_mean_counts() -> None:
    turns: Turns[str] = Turns()
    for client in (b"slow", b"quick"):
        for n in range(20):
            turns.push(client, f"{n}")
    assert [turns.pop(), turns.pop()] == [(b"slow", "0"), (b"quick", "0")]
    turns.spent(b"slow", 10.0)
    turns.spent(b"quick", 1.0)
    taken = [turns.pop() for _ in range(8)]
    assert [turn[0] for turn in taken if turn] == [b"quick"] * 8, "none of them has been paid for"
    for _ in range(8):
        turns.spent(b"quick", 0.0)  # not done after all
    assert turns.pop() == (b"quick", "9")


def test_a_dear_first_thing_is_paid_for_once() -> None:
    """A worker's first sample takes many times as long as the next ones; each of those was paid for in advance by the
    mean of what had been, and 64 others had their turns until that was worked off."""
    turns: Turns[str] = Turns()
    for name in [b"first", *(b"%d" % n for n in range(63))]:
        for n in range(500):
            turns.push(name, f"{n}")
    had = Counter[bytes]()
    for number in range(64 * 100):
        turn = turns.pop()
        assert turn is not None
        turns.spent(turn[0], 20.0 if number == 0 else 1.0)
        had[turn[0]] += 1
    assert had[b"first"] > 75, "and not 20 less for each of the first ones"
    assert len(turns._line) < 2 * 64 + 65


def test_a_client_that_is_held_is_passed_over() -> None:
    turns: Turns[str] = Turns()
    turns.push(b"deaf", "1")
    turns.push(b"b", "2")
    turns.hold(b"deaf", True)
    turns.push(b"deaf", "3")
    assert _served(turns, 9) == [(b"b", "2")] and len(turns) == 2
    turns.hold(b"deaf", False)
    assert _served(turns, 9) == [(b"deaf", "1"), (b"deaf", "3")]


def test_clients_that_come_after_all_others() -> None:
    turns: Turns[str] = Turns()
    for client in (b"slow", b"b"):
        for n in range(2):
            turns.push(client, f"{n}")
    taken = [turns.pop(after={b"slow"}) for _ in range(5)]
    assert taken == [(b"b", "0"), (b"b", "1"), (b"slow", "0"), (b"slow", "1"), None]


def test_what_is_put_back_comes_first() -> None:
    turns: Turns[str] = Turns()
    turns.push(b"a", "1")
    turns.push(b"a", "2")
    assert turns.pop() == (b"a", "1")
    turns.push(b"a", "1", first=True)
    assert [turns.pop(), turns.pop()] == [(b"a", "1"), (b"a", "2")]


class AgainstModel(RuleBasedStateMachine):
    """The model: what waits of each client, in order, and who is held."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[int] = Turns()
        self.waiting: dict[bytes, list[int]] = {client: [] for client in CLIENTS}
        self.held: set[bytes] = set()
        self.serial = 0

    @rule(client=st.sampled_from(CLIENTS), first=st.booleans())
    def push(self, client: bytes, first: bool) -> None:
        self.serial += 1
        self.turns.push(client, self.serial, first=first)
        self.waiting[client].insert(0 if first else len(self.waiting[client]), self.serial)

    @rule(client=st.sampled_from(CLIENTS), held=st.booleans())
    def hold(self, client: bytes, held: bool) -> None:
        self.turns.hold(client, held)
        (self.held.add if held else self.held.discard)(client)

    @rule(client=st.sampled_from(CLIENTS))
    def drop(self, client: bytes) -> None:
        assert self.turns.drop(client) == self.waiting[client]
        self.waiting[client] = []
        self.held.discard(client)

    @rule(but=st.sets(st.sampled_from(CLIENTS)))
    def take_all(self, but: set[bytes]) -> None:
        taken = self.turns.take_all(but)
        assert sorted(taken) == sorted(n for client in CLIENTS if client not in but for n in self.waiting[client])
        for client in set(CLIENTS) - but:
            self.waiting[client] = []

    @rule(client=st.sampled_from(CLIENTS), cost=st.floats(0, 10))
    def spent(self, client: bytes, cost: float) -> None:
        self.turns.spent(client, cost)

    @rule(after=st.sets(st.sampled_from(CLIENTS)))
    def pop(self, after: set[bytes]) -> None:
        ready = {client for client in CLIENTS if self.waiting[client]} - self.held
        turn = self.turns.pop(after)
        if not ready:
            assert turn is None
            return
        assert turn is not None
        client, thing = turn
        assert client in (ready - after or ready) and thing == self.waiting[client].pop(0)

    @precondition(lambda self: not self.held)
    @invariant()
    def all_can_be_had(self) -> None:
        assert len(self.turns) == sum(map(len, self.waiting.values()))
        assert self.turns.clients == sum(map(bool, self.waiting.values()))


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = examples(60, stateful_step_count=40)


def test_what_a_thing_will_cost_is_expected_from_its_client_s_and_else_from_all() -> None:
    turns: Turns[str] = Turns()
    turns.push(b"a", "1")
    assert turns.expected(b"a") == turns.expected(b"nobody") == 0.0, "nothing is known"
    turns.pop()
    turns.spent(b"a", 3.0)
    turns.push(b"b", "1")
    assert turns.expected(b"a") == turns.expected(b"b") == 3.0
    turns.pop()
    turns.spent(b"b", 1.0)
    assert (turns.expected(b"a"), turns.expected(b"b")) == (3.0, 1.0)
