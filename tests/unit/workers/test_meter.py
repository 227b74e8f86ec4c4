"""What a batch takes is counted while it goes on, and nothing is counted twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sophon_loader.measures.counters import Statistics, Totals
from sophon_loader.workers import meter as module
from sophon_loader.workers.meter import EVERY_S, Meter
from tests.support.clocks import FakeClock


class Session(SimpleNamespace):
    """What a meter looks at."""


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeClock, FakeClock]:
    """(seconds, CPU seconds)"""
    wall, cpu = FakeClock(), FakeClock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=wall, process_time=cpu, thread_time=cpu))
    return wall, cpu


def session_of(**counted: Any) -> Any:
    usual = {"received_nbytes": 7, "retries": 1, "waited_s": 2.0, "starved_s": 1.0}
    usual |= {"fresh": 3, "net_s": 0.5, "queued_s": 0.25, "corrupt": 1, "malformed": 2}
    return Session(**(usual | counted))


def started(session: Any) -> tuple[Meter, Statistics]:
    statistics = Statistics(1, ["file"])
    row = statistics.row(0)
    row.begin(1)
    return Meter(session, row), statistics


def test_a_batch_is_counted_from_its_beginning_on(clocks: tuple[FakeClock, FakeClock]) -> None:
    wall, cpu = clocks
    session = session_of()
    meter, statistics = started(session)
    wall.now_s += 3.0
    cpu.now_s += 0.75
    session.received_nbytes, session.waited_s, session.fresh, session.net_s = 107, 4.0, 5, 1.0
    session.queued_s, session.retries, session.starved_s = 0.5, 2, 1.5
    session.corrupt, session.malformed = 4, 4
    meter.count()
    totals = statistics.totals(1)
    assert (totals.wire_bytes, totals.waited_s, totals.fresh, totals.net_s, totals.fresh_queued_s) == (
        100, 2.0, 2, 0.5, 0.25,
    )  # fmt: skip
    assert (totals.retries, totals.loader_cpu_s, totals.busy_s, totals.starved_s) == (1, 0.75, 1.0, 0.5)
    assert (totals.corrupt, totals.malformed) == (3, 2)
    meter.count()
    assert statistics.totals(1) == totals, "nothing is counted twice"


def test_a_long_batch_is_counted_on_the_way(clocks: tuple[FakeClock, FakeClock]) -> None:
    wall, cpu = clocks
    meter, statistics = started(session_of())
    seen: list[Totals] = []
    for _ in range(10):
        wall.now_s += EVERY_S / 2 + 1e-6
        cpu.now_s += 0.01
        meter.sometimes()
        seen.append(statistics.totals(1))
    assert [one.loader_cpu_s for one in seen[:4]] == pytest.approx([0.0, 0.02, 0.02, 0.04])
    meter.count()
    assert statistics.totals(1).loader_cpu_s == pytest.approx(0.1)
    assert statistics.totals(1).busy_s == pytest.approx(5 * EVERY_S, abs=1e-4)


def test_without_an_agent_time_is_counted_alone(clocks: tuple[FakeClock, FakeClock]) -> None:
    wall, cpu = clocks
    meter, statistics = started(None)
    wall.now_s += 1.0
    cpu.now_s += 0.5
    meter.count()
    assert statistics.totals(1) == Totals(loader_cpu_s=0.5, busy_s=1.0)


@pytest.mark.parametrize(("worker", "counted"), [(object(), 0.5), (None, 0.0)])
def test_what_a_worker_does_between_batches_is_loading(
    clocks: tuple[FakeClock, FakeClock], monkeypatch: pytest.MonkeyPatch, worker: object, counted: float
) -> None:
    """It collates and sends; in the main process it is the training step."""
    monkeypatch.setattr(module, "get_worker_info", lambda: worker)
    wall, cpu = clocks
    meter, statistics = started(None)
    wall.now_s += 3.0
    cpu.now_s += 0.5
    meter.begin()
    assert statistics.totals(1) == Totals(loader_cpu_s=counted, busy_s=counted)
    wall.now_s += 1.0
    cpu.now_s += 0.25
    meter.count()
    assert statistics.totals(1) == Totals(loader_cpu_s=counted + 0.25, busy_s=counted + 1.0)
