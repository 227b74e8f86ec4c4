"""The burst over the wire: what it finds, and how much it leaves there."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import pytest

from sophon_loader.client.address import Address
from sophon_loader.errors import AgentUnreachable
from sophon_loader.plans.burst import measure_wire
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Sample
from tests.support.clocks import FakeClock


class WireStandIn:
    """Stands in for a Connection: a wire of known latency and rate, on a clock that it moves itself.

    Args:
        rate: bytes/s; 0 for an agent that never answers.
        failing: numbers of requests that are answered by Failed.
    """

    def __init__(self, clock: FakeClock, rate: float, latency_s: float, nbytes: int, failing: Any = ()) -> None:
        self.address = Address.parse("tcp://127.0.0.1:1/d")
        self.most_outstanding = self.sent = 0
        self.asked_keys: list[str] = []
        self._clock, self._rate, self._latency_s, self._nbytes = clock, rate, latency_s, nbytes
        self._failing = failing
        self._free_s = 0.0
        self._arrivals: deque[tuple[float, Message, bytes]] = deque()

    def send(self, message: Message) -> None:
        assert isinstance(message, Fetch)
        (item,) = message.items
        self.asked_keys.append(item.key)
        self.sent += 1
        if not self._rate:
            return
        if self.sent in self._failing:
            self._arrivals.append((self._clock.now_s + self._latency_s, Failed(Failure.MISSING, "no", [item.id]), b""))
        else:
            start_s = max(self._clock.now_s + self._latency_s, self._free_s)
            self._free_s = start_s + self._nbytes / self._rate
            sample = Sample(item.id, 0, "file", {}, self._nbytes, [0.0], 0.0, 0.0, "")
            self._arrivals.append((self._free_s, sample, bytes(self._nbytes)))
        self.most_outstanding = max(self.most_outstanding, len(self._arrivals))

    def receive(self, timeout_s: float) -> tuple[Message, bytes] | None:
        if not self._arrivals or self._arrivals[0][0] > self._clock.now_s + timeout_s:
            self._clock.now_s += timeout_s
            return None
        arrived_s, message, payload = self._arrivals.popleft()
        self._clock.now_s = max(self._clock.now_s, arrived_s)
        return message, payload


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    found = FakeClock()
    monkeypatch.setattr(time, "perf_counter", found)
    return found


@pytest.mark.parametrize("latency_s", [0.0001, 0.02, 0.1])
@pytest.mark.parametrize("rate", [100e3, 5e6, 12.5e6, 300e6])
def test_the_burst_finds_the_rate_of_a_wire(clock: FakeClock, rate: float, latency_s: float) -> None:
    wire = WireStandIn(clock, rate, latency_s, 20_000)
    found = measure_wire(wire, [f"k{n}" for n in range(5)], window=64)  # type: ignore[arg-type]
    assert clock.now_s - 100.0 < 2.5
    assert wire.most_outstanding <= 64
    assert found <= 1.01 * rate
    if rate * latency_s < 64 * 20_000:  # else the window, rightly, is what limits
        assert found >= 0.9 * rate
    assert set(wire.asked_keys) <= {f"k{n}" for n in range(5)}


@pytest.mark.parametrize("latency_s", [0.01, 0.1, 0.2])
def test_the_burst_finds_the_rate_over_a_long_way(clock: FakeClock, latency_s: float) -> None:
    """125 MB/s over 0.1 s are 114 files of 110 KB; files are asked for until so many are on their way."""
    wire = WireStandIn(clock, 125e6, latency_s, 110_000)
    found = measure_wire(wire, ["k"], window=512)  # type: ignore[arg-type]
    assert 0.9 * 125e6 <= found <= 1.01 * 125e6
    assert clock.now_s - 100.0 < 0.3 + 8 * latency_s


def test_little_is_left_on_a_slow_wire(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 1e6, 0.001, 100_000)
    measure_wire(wire, ["k"], window=64)  # type: ignore[arg-type]
    assert wire.most_outstanding <= 4


def test_an_agent_that_answers_nothing(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 0, 0.0, 1000)
    with pytest.raises(AgentUnreachable, match="must send files to measure the network with, got none"):
        measure_wire(wire, ["k"], window=8)  # type: ignore[arg-type]
    assert clock.now_s - 100.0 < 5


def test_files_that_are_missing_count_as_nothing(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 10e6, 0.001, 50_000, failing=range(2, 10_000, 2))
    assert 1e6 < measure_wire(wire, ["a", "b"], window=8) <= 10.1e6  # type: ignore[arg-type]


def test_a_single_file_that_comes_makes_a_rate_above_zero(clock: FakeClock) -> None:
    wire = WireStandIn(clock, 10e6, 0.001, 50_000, failing=range(2, 10_000))
    assert measure_wire(wire, ["a", "b"], window=8) > 0  # type: ignore[arg-type]
