"""The pacer's rate over time, under a clock that the tests turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_agent.pacing import BURST_S, Pacer


def _drain(pacer: Pacer[int], now_s: float) -> list[tuple[float, int]]:
    """(when, what) of everything queued, the clock going from one `wait_s` to the next."""
    sent = []
    while (wait_s := pacer.wait_s(now_s)) is not None:
        now_s += wait_s
        reply = pacer.due(now_s)
        if reply is None:
            now_s += 1e-9  # the rounding of a sum of floats
        else:
            sent.append((now_s, reply))
    return sent


def test_without_a_limit_everything_goes_at_once() -> None:
    pacer: Pacer[int] = Pacer(None)
    for n in range(5):
        pacer.put(1 << 30, n)
    assert pacer.wait_s(0.0) == 0.0
    assert [pacer.due(0.0) for _ in range(6)] == [0, 1, 2, 3, 4, None]
    assert pacer.wait_s(0.0) is None and len(pacer) == 0


@given(
    st.lists(st.integers(1, 300_000), min_size=1, max_size=60),
    st.sampled_from([1.0, 8.0, 100.0, 1000.0]),
    st.floats(0, 1e6),
)
def test_the_rate_is_kept_over_every_stretch_of_time(sizes: list[int], limit_mbit: float, start_s: float) -> None:
    pacer: Pacer[int] = Pacer(limit_mbit)
    for n, nbytes in enumerate(sizes):
        pacer.put(nbytes, n)
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
        pacer.put(500_000, 1)
        pacer.put(500_000, 2)
        assert pacer.due(now_s) == 1 and pacer.due(now_s) is None
        assert pacer.wait_s(now_s) == pytest.approx(0.5 - BURST_S)
        assert pacer.due(now_s + 0.4) is None and len(pacer) == 1
        assert pacer.due(now_s + 0.5) == 2
