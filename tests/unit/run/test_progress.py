"""The line on the terminal: what it says."""

from __future__ import annotations

from dataclasses import replace

from sophon_loader.measures.counters import NO_TOTALS
from sophon_loader.report.agents import AgentShare
from sophon_loader.report.report import Report
from sophon_loader.run.progress import told


def test_it_says_how_fast_how_much_what_is_saved_and_what_limits() -> None:
    report = Report(
        "auto",
        limits={"wire": 1.0, "gpu": 0.3},
        bottleneck="wire",
        seconds=6.0,
        awaited_s=5.0,
        totals=replace(NO_TOTALS, samples=900, wire_bytes=30_000_000, read_bytes=120_000_000),
    )
    recent = replace(NO_TOTALS, samples=300, wire_bytes=5_000_000)
    assert told(report, recent, 2.0) == "150 samples/s, 2.5 MB/s, 75 % saved, the network limits"
    assert told(replace(report, awaited_s=0.1), recent, 2.0).endswith("75 % saved, the training step limits")
    gone = replace(report, totals=replace(report.totals, fallbacks=900))
    assert told(gone, recent, 2.0).endswith("the agent sends nothing usable")


def test_a_lost_agent_is_named_before_what_limits() -> None:
    agents = tuple(AgentShare("tcp://a:1/p", state=state) for state in ("in use", "does not answer", "has left"))
    assert told(Report("auto", agents=agents), NO_TOTALS, 0.0) == "1 of 2 agents lost"
    assert told(Report("auto", agents=agents[::2]), NO_TOTALS, 0.0) == ""
    again = (agents[0], replace(agents[1], losses=2))
    assert told(Report("auto", agents=again), NO_TOTALS, 0.0) == "1 of 2 agents lost (2 losses so far)"


def test_what_is_not_known_is_left_out() -> None:
    assert told(Report("auto"), NO_TOTALS, 0.0) == ""
    assert told(Report("auto"), replace(NO_TOTALS, samples=3), 1.0) == "3 samples/s, 0 bytes/s"
