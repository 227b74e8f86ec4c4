"""The pacer's rate over time, under a clock that the tests turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_agent.clients.pacing import ALL_NBYTES, BURST_S, FULL_NBYTES, MAX_RETRY_S, RETRY_S, Pacer

C = b"client"


def _due(pacer: Pacer[int], now_s: float) -> int | None:
    """The next reply, which is taken."""
    waiting = pacer.due(now_s)
    if waiting is None:
        return None
    pacer.sent(waiting, now_s)
    return waiting.reply


def _drain(pacer: Pacer[int], now_s: float) -> list[tuple[float, int]]:
    """(when, what) of everything queued, the clock going from one `wait_s` to the next."""
    sent = []
    while (wait_s := pacer.wait_s(now_s)) is not None:
        now_s += wait_s
        reply = _due(pacer, now_s)
        if reply is None:
            now_s += 1e-9  # the rounding of a sum of floats
        else:
            sent.append((now_s, reply))
    return sent


def test_without_a_limit_everything_goes_at_once() -> None:
    pacer: Pacer[int] = Pacer(None)
    for n in range(5):
        pacer.put(C, 1 << 30, n)
    assert pacer.wait_s(0.0) == 0.0
    assert [_due(pacer, 0.0) for _ in range(6)] == [0, 1, 2, 3, 4, None]
    assert pacer.wait_s(0.0) is None and len(pacer) == 0


@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=60),
    st.sampled_from([1.0, 8.0, 100.0, 1000.0]),
    st.floats(0, 1e6),
)
def test_the_rate_is_kept_over_every_stretch_of_time(sizes: list[int], limit_mbit: float, start_s: float) -> None:
    pacer: Pacer[int] = Pacer(limit_mbit)
    for n, nbytes in enumerate(sizes):
        pacer.put(C, nbytes, n)
    sent = _drain(pacer, start_s)
    assert [n for _, n in sent] == list(range(len(sizes))), "in order, each once"
    bytes_per_s = limit_mbit * 1e6 / 8
    for first in range(len(sent)):
        before_last = sum(sizes[first : len(sent) - 1])
        took_s = sent[-1][0] - sent[first][0]
        assert before_last <= bytes_per_s * (took_s + BURST_S + 1e-6)
    whole_s = sum(sizes[:-1]) / bytes_per_s
    assert sent[-1][0] - start_s <= whole_s + 1e-6, "nor any slower than that"


def test_an_idle_time_is_not_saved_up() -> None:
    pacer: Pacer[int] = Pacer(8.0)  # a byte per microsecond
    for now_s in (100.0, 200.0):
        pacer.put(C, 500_000, 1)
        pacer.put(C, 500_000, 2)
        assert _due(pacer, now_s) == 1 and _due(pacer, now_s) is None
        assert pacer.wait_s(now_s) == pytest.approx(0.5 - BURST_S)
        assert _due(pacer, now_s + 0.4) is None and len(pacer) == 1
        assert _due(pacer, now_s + 0.5) == 2


def test_bytes_are_shared_and_not_replies() -> None:
    pacer: Pacer[int] = Pacer(8.0)
    for n in range(1000):
        pacer.put(b"large", 100_000, n)
        pacer.put(b"small", 1_000, n)
    now_s, sent = 0.0, {b"large": 0, b"small": 0}
    while now_s < 0.8:
        now_s += pacer.wait_s(now_s) or 1e-9
        if (waiting := pacer.due(now_s)) is not None:
            sent[waiting.client] += waiting.nbytes
            pacer.sent(waiting, now_s)
    assert sent[b"large"] == pytest.approx(sent[b"small"], abs=150_000)


def test_a_client_that_does_not_take_its_reply_waits_while_others_go_on() -> None:
    pacer: Pacer[int] = Pacer(None)
    for client in (b"deaf", b"b"):
        for n in range(2):
            pacer.put(client, 10, n)
    for _ in range(3):
        waiting = pacer.due(0.0)
        assert waiting is not None
        if waiting.client == b"deaf":
            pacer.returned(waiting, 0.0)
        else:
            pacer.sent(waiting, 0.0)
    assert pacer.due(0.0) is None and pacer.wait_s(0.0) == pytest.approx(RETRY_S) and len(pacer) == 2
    assert [_due(pacer, RETRY_S) for _ in range(3)] == [0, 1, None], "in their order"
    assert pacer.wait_s(1.0) is None


@pytest.mark.parametrize("per_s", [10, 50, 400])
def test_a_slow_client_is_not_asked_over_and_over(per_s: int) -> None:
    """A client that has room for one more reply every so often: it is tried about once for every few that it takes,
    and never has room for long."""
    pacer: Pacer[int] = Pacer(None)
    for n in range(1000):
        pacer.put(C, 10, n)
    now_s, taken, tried, most_room = 0.0, 0, 0, 0
    while now_s < 2.0:
        while (waiting := pacer.due(now_s)) is not None:
            tried += 1
            room = int(now_s * per_s) - taken
            most_room = max(most_room, room)
            if not room:
                pacer.returned(waiting, now_s)
            else:
                pacer.sent(waiting, now_s)
                taken += 1
        now_s += pacer.wait_s(now_s) or 0.0
    assert taken >= 2.0 * per_s - 10
    assert most_room <= max(8, per_s * RETRY_S), "of the 32 that ZeroMQ may have"
    assert tried - taken <= max(taken, 2.0 / MAX_RETRY_S + 5), "once for a reply, or as rarely as may be"


def test_what_waits_for_nobody_goes_at_once() -> None:
    pacer: Pacer[int] = Pacer(8.0)
    assert pacer.is_free(0.0)
    pacer.passed(500_000, 0.0)
    assert not pacer.is_free(0.4), "the wire is busy"
    assert pacer.is_free(0.5)
    pacer.put(C, 1, 0)
    assert not pacer.is_free(0.5), "another is first"


def test_nothing_is_waited_for_when_a_client_leaves_that_did_not_take_its_reply() -> None:
    """The time at which it would have been tried again passes, and nobody must wake up for that, over and over."""
    pacer: Pacer[int] = Pacer(None)
    pacer.put(C, 100, 1)
    waiting = pacer.due(0.0)
    assert waiting is not None
    pacer.returned(waiting, 0.0)
    assert pacer.wait_s(0.0) == RETRY_S
    pacer.drop(C)
    assert pacer.wait_s(0.0) is None and pacer.wait_s(1.0) is None
    pacer.put(b"other", 100, 2)
    waiting = pacer.due(2.0)
    assert waiting is not None
    pacer.returned(waiting, 2.0)
    assert pacer.wait_s(2.0) == pytest.approx(RETRY_S), "its own, and not that of who has left"


def test_nothing_more_is_made_for_a_client_that_has_enough_waiting() -> None:
    pacer: Pacer[int] = Pacer(None)
    pacer.put(C, FULL_NBYTES, 0)
    assert list(pacer.changes()) == []
    pacer.put(C, 1, 1)
    pacer.put(C, 1, 2)
    assert list(pacer.changes()) == [(C, True)]
    _due(pacer, 0.0)
    assert list(pacer.changes()) == [(C, False)]


@pytest.mark.parametrize("told", [False, True])
def test_a_client_that_leaves_while_it_has_enough_is_no_longer_held_up(told: bool) -> None:
    """It may come back under the same name, and is owed what it asks for then."""
    pacer: Pacer[int] = Pacer(None)
    pacer.put(C, FULL_NBYTES + 1, 0)
    if told:
        assert list(pacer.changes()) == [(C, True)]
    pacer.drop(C)
    assert dict(pacer.changes()) == {C: False}
    pacer.put(C, 100, 1)
    assert _due(pacer, 0.0) == 1 and list(pacer.changes()) == []


def test_what_waits_is_bounded_over_all_clients() -> None:
    pacer: Pacer[int] = Pacer(None)
    clients = [b"%d" % n for n in range(1000)]
    full: set[bytes] = set()
    for n in range(200):
        for client in clients:
            if client not in full:
                pacer.put(client, 100_000, n)
        full |= {client for client, now in pacer.changes() if now}
    assert len(pacer) * 100_000 < 2 * ALL_NBYTES
    assert sum(pacer.drop(client) for client in clients) > 0 and len(pacer) == 0 and pacer.wait_s(0.0) is None
