"""Dry runs at the agent: which samples, what is taken from the answers, and the ratio of the two ends' CPUs."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Any, ClassVar

import numpy as np
import pytest

from sophon_loader.client.address import Address
from sophon_loader.client.options import OffloadOptions
from sophon_loader.errors import AgentUnreachable, MalformedMessage
from sophon_loader.pipeline.randomness import Seed
from sophon_loader.plans import dry_runs as module
from sophon_loader.plans.dry_runs import Prober
from sophon_loader.plans.probes import MAX_PROBES, Probe, ProbeRequest, op_ratios, spread_over
from sophon_loader.wire.messages import Failed, Failure, Fetch, Message, Sample

ADDRESS = Address.parse("tcp://127.0.0.1:1/d")


# --- which samples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 63, 64, 65, 1000, 1_281_167])
def test_probes_are_spread_over_all_samples(samples: int) -> None:
    found = spread_over(samples)
    assert len(found) == len(set(found)) == min(samples, MAX_PROBES)
    assert found == sorted(found)
    if samples:
        assert found[0] == 0 and found[-1] == samples - 1
        assert max(np.diff(found), default=0) <= -(-samples // 60)


@pytest.mark.parametrize(("most", "expected"), [(1, [0]), (2, [0, 99]), (4, [0, 33, 66, 99])])
def test_as_many_as_asked_for(most: int, expected: list[int]) -> None:
    assert spread_over(100, most) == expected


# --- the ratio of CPUs ----------------------------------------------------------------------------------------


LOADER_S = np.array([[0.010, 0.020, 0.001], [0.030, 0.010, 0.001], [0.005, 0.005, 0.005]])
ALL_KNOWN = np.ones(3, bool)


def probe(index: int, cut: int, *op_s: float) -> Probe:
    return Probe(index, cut, "pixels", 100, (0.5, *op_s, 0.25))


def test_the_ratio_of_each_op_is_that_of_the_sums() -> None:
    probes = [probe(0, 3, 0.020, 0.020, 0.0005), probe(1, 3, 0.060, 0.040, 0.0015)]
    assert op_ratios(probes, LOADER_S, ALL_KNOWN) == pytest.approx([2.0, 2.0, 1.0])


def test_without_probes_both_cpus_count_as_equal() -> None:
    assert op_ratios([], LOADER_S, ALL_KNOWN).tolist() == [1.0, 1.0, 1.0]
    unknown = np.zeros(3, bool)
    assert op_ratios([probe(0, 3, 9.0, 9.0, 9.0)], LOADER_S, unknown).tolist() == [1.0, 1.0, 1.0]


def test_an_op_that_no_probe_reached_has_the_ratio_of_the_others() -> None:
    found = op_ratios([probe(0, 2, 0.030, 0.060)], LOADER_S, ALL_KNOWN)
    assert found == pytest.approx([3.0, 3.0, 3.0])


def test_an_op_without_measurable_time() -> None:
    loader_s = np.array([[0.010, 0.0]])
    assert op_ratios([probe(0, 2, 0.020, 0.0)], loader_s, np.ones(1, bool)) == pytest.approx([2.0, 2.0])
    assert op_ratios([probe(0, 2, 0.020, 0.001)], loader_s, np.ones(1, bool)) == pytest.approx([2.0, 2.1])
    assert op_ratios([probe(0, 2, 0.0, 0.0)], loader_s, np.ones(1, bool)).tolist() == [1.0, 1.0]


def test_more_ops_at_the_agent_than_are_measured_here() -> None:
    assert op_ratios([probe(0, 5, 0.02, 0.04, 0.002, 7.0, 8.0)], LOADER_S, ALL_KNOWN) == pytest.approx([2.0] * 3)


# --- asking ---------------------------------------------------------------------------------------------------


class AgentStandIn:
    """Stands in for a Connection: answers each request by what `answer` makes of its item."""

    made: ClassVar[deque[AgentStandIn]] = deque()
    answer: Any = None
    fails: Any = None

    def __init__(self, address: Address, window: int, options: OffloadOptions) -> None:
        self.address, self.closed, self.fetches = address, False, []
        AgentStandIn.made.append(self)

    def send(self, message: Message) -> None:
        assert isinstance(message, Fetch)
        self.fetches.append(message)

    def receive(self, timeout_s: float) -> tuple[Message, bytes] | None:
        if AgentStandIn.fails is not None:
            raise AgentStandIn.fails
        answer = AgentStandIn.answer(self.fetches[-1].items[0])
        return None if answer is None else (answer, b"")

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> type[AgentStandIn]:
    AgentStandIn.made = deque()
    AgentStandIn.fails = None
    monkeypatch.setattr(module, "Connection", AgentStandIn)
    return AgentStandIn


def dry(item: Any, **changes: Any) -> Sample:
    fields = {"id": item.id, "cut": item.cut, "encoding": item.encoding, "meta": {"nbytes": 1234 + item.sample}}
    fields |= {"file_nbytes": 5000, "op_s": [0.1, 0.2, 0.3], "upkeep_s": 0.0, "queued_s": 0.0, "note": ""}
    return Sample(**(fields | changes))


REQUESTS = [ProbeRequest(index, 2, "webp", f"k{index}", "digest") for index in range(5)]


def probed(requests: list[ProbeRequest] = REQUESTS) -> list[Probe]:
    prober = Prober(ADDRESS, requests, seed=Seed(7), options=OffloadOptions(dead_after_s=0.1))
    prober.start()
    found = prober.finish(10.0)
    assert not prober.is_alive()
    return found


def test_every_request_is_a_dry_run(agent: type[AgentStandIn]) -> None:
    agent.answer = staticmethod(dry)
    assert probed() == [Probe(index, 2, "webp", 1234 + index, (0.1, 0.2, 0.3)) for index in range(5)]
    (connection,) = agent.made
    assert connection.closed
    assert all(fetch.dry and fetch.seed == 7 and fetch.digest == "digest" for fetch in connection.fetches)
    assert [fetch.items[0].key for fetch in connection.fetches] == ["k0", "k1", "k2", "k3", "k4"]


def test_an_agent_that_falls_silent_ends_it(agent: type[AgentStandIn]) -> None:
    agent.answer = staticmethod(lambda item: dry(item) if item.sample < 2 else None)
    assert [probe.index for probe in probed()] == [0, 1]
    assert len(agent.made[0].fetches) == 3 and agent.made[0].closed


@pytest.mark.parametrize("error", [AgentUnreachable("gone"), MalformedMessage("what")], ids=str)
def test_an_error_ends_it_quietly(agent: type[AgentStandIn], error: Exception) -> None:
    agent.fails = error
    assert probed() == []
    assert agent.made[0].closed


def test_answers_that_say_nothing_are_left_out(agent: type[AgentStandIn]) -> None:
    bad = {
        0: lambda item: dry(item, cut=0, encoding="file"),  # degraded
        1: lambda item: Failed(Failure.MISSING, "no such file", [item.id]),
        2: lambda item: dry(item, meta={}),
        3: lambda item: dry(item, meta={"nbytes": "many"}),
        4: lambda item: dry(item),
        5: lambda item: dry(item, op_s=[]),
        6: lambda item: dry(item, op_s=[0.1]),
        7: lambda item: dry(item, meta={"nbytes": 0}),
        8: lambda item: dry(item, meta={"nbytes": -4}),
        9: lambda item: dry(item, op_s=[0.1, float("nan"), 0.2]),
        10: lambda item: dry(item, op_s=[0.1, -0.5, 0.2]),
        11: lambda item: dry(item, op_s=[0.1, float("inf"), 0.2]),
    }
    agent.answer = staticmethod(lambda item: bad[item.sample](item))
    requests = [ProbeRequest(index, 2, "webp", "k", "d") for index in bad]
    assert [probe.index for probe in probed(requests)] == [4]


def test_it_can_be_told_to_end(agent: type[AgentStandIn]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(item: Any) -> Sample:
        begun.set()
        assert go_on.wait(10)
        return dry(item)

    agent.answer = staticmethod(slow)
    prober = Prober(ADDRESS, REQUESTS, seed=Seed(7), options=OffloadOptions(dead_after_s=0.1))
    prober.start()
    assert begun.wait(10)
    assert prober.finish(0.01) == []
    go_on.set()
    prober.join(10)
    assert len(agent.made[0].fetches) == 1, "no more is asked once nobody wants to know"


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, so that no other process gets it, and not listening
        address = Address.parse(f"tcp://127.0.0.1:{taken.getsockname()[1]}/d")
        prober = Prober(address, REQUESTS, seed=Seed(7), options=OffloadOptions(dead_after_s=0.1))
        prober.start()
        assert prober.finish(10.0) == []
        assert not prober.is_alive()
