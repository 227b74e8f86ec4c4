"""The log: levels, forms, and how much of it there can be at most."""

from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sophon_loader.wire.messages import Failed, Failure
from storage_agent.broker.tally import Tally
from storage_agent.host import log as log_module
from storage_agent.host.log import BURST, MAX_ENTRIES, MAX_TEXT_LENGTH, PER_S, EventLog, configure

EVENTS = {
    "agent started", "metrics served", "agent announced", "agent announced for this host only", "agent not announced",
    "agent stopping", "agent stopped", "agent insecure",
    "keys created", "keys cannot be read", "key refused", "tokens replaced", "no client is let in",
    "loader joined", "loader left", "pipeline requested", "pipeline registered", "request refused", "connection closed",
    "reply dropped", "replies paused", "worker died", "JPEG files are sent whole", "lines left out",
    "no pipeline is run",
    "members left out", "fetching process ended", "store away", "store back", "listing taken",
    "compressed pictures unpacked", "archives of two kinds", "archives that may not be whole",
    "objects without a usable ETag",
}  # fmt: skip


class Clock:
    """Stands still until it is set."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Whatever a test configures, the next finds the logger as it was."""
    logger = logging.getLogger("storage_agent")
    before = (logger.handlers[:], logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[str]]:
    """Configures a log, if told how, and gives the lines that have been written since the last call.

    Each test begins with a call: standard error is another before.
    """

    def taken(**how: Any) -> list[str]:
        if how:
            configure(how.pop("level", "info"), as_json=how.pop("as_json", False))
        return capsys.readouterr().err.splitlines()

    return taken


def test_an_event_is_one_line(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    log = EventLog(Clock())
    log.warning("worker died", worker=2, exit_code="-9", samples=["d/a\nb.jpg", "d/caf\udce9.jpg"])
    log.info("agent stopping")
    died, stopping = lines()
    time, rest = died.split(" ", 1)
    assert rest == 'warning worker died worker=2 exit_code=-9 samples=["d/a\\nb.jpg","d/caf\\udce9.jpg"]'
    assert datetime.fromisoformat(time).tzinfo is not None
    assert stopping.endswith(" info agent stopping") and died.isascii()


@pytest.mark.parametrize(("value", "shown"), [
    ("gpu-7@10.0.0.7", "gpu-7@10.0.0.7"), ("tcp://[::1]:5", '"tcp://[::1]:5"'), ("two words", '"two words"'),
    ("", '""'),
    ("a=b", '"a=b"'), ('"', '"\\""'), ("caf\xe9", "caf\xe9"), ("\x1b[2J", '"\\u001b[2J"'),
    ("d/\udce9 \xe9", '"d/\\udce9 \\u00e9"'), (True, "true"), (None, "null"), (0.5, "0.5"),
    ({"d": "/a b"}, '{"d":"/a b"}'), (["x", 1], '["x",1]'),
])  # fmt: skip
def test_a_value_ends_where_it_seems_to(lines: Callable[..., list[str]], value: Any, shown: str) -> None:
    """Only text that can be mistaken for nothing else stands without quotes."""
    lines(level="info")
    EventLog(Clock()).info("reply dropped", what=value, reason="x")
    assert lines()[0].endswith(f" info reply dropped what={shown} reason=x")


def test_every_event_is_known_and_its_facts_have_the_usual_names() -> None:
    """Who watches the log looks for these words."""
    found: dict[str, set[str]] = {}
    for path in Path(log_module.__file__).parents[1].rglob("*.py"):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            first = call.args[0] if call.args else None
            if name in ("info", "warning", "write", "Log") and isinstance(first, ast.Constant):
                found.setdefault(str(first.value), set()).update(one.arg for one in call.keywords if one.arg)
    assert set(found) == EVENTS
    assert {fact for facts in found.values() for fact in facts} & {"client", "peer", "why", "meaning", "error"} == set()


def test_an_event_as_json(lines: Callable[..., list[str]]) -> None:
    lines(as_json=True)
    EventLog(Clock()).info("agent started", address="tcp://127.0.0.1:5", exports={"d": "/a\nb"}, workers=2)
    (line,) = lines()
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("time")).tzinfo is not None
    exports = {"d": "/a\nb"}
    assert told == {
        "level": "info", "event": "agent started", "address": "tcp://127.0.0.1:5", "exports": exports, "workers": 2,
    }  # fmt: skip


@pytest.mark.parametrize(("level", "written"), [("info", 2), ("warning", 1), ("error", 0)])
def test_levels(lines: Callable[..., list[str]], level: str, written: int) -> None:
    lines(level=level)
    log = EventLog(Clock())
    log.info("loader joined")
    log.warning("worker died")
    assert len(lines()) == written


def test_a_second_configuration_replaces_the_first(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    lines(as_json=True)
    EventLog(Clock()).info("agent stopping")
    assert len(lines()) == 1


def test_a_flood_is_bounded_and_counted(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    clock = Clock()
    log = EventLog(clock)
    for _ in range(1000):
        log.info("request refused", reason="busy")
    assert len(lines()) == BURST
    clock.now_s += 3.0
    for _ in range(1000):
        log.info("request refused", reason="busy")
    written = lines()
    assert len(written) == 3 * PER_S
    assert written[0].endswith(f"reason=busy left_out={1000 - BURST}") and "left_out" not in written[1]
    clock.now_s += 1e6
    for _ in range(1000):
        log.info("request refused", reason="busy")
    assert len(lines()) == BURST


def test_a_flood_of_one_kind_hides_no_other(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    log = EventLog(Clock())
    for _ in range(1000):
        log.info("request refused")
    lines()
    log.warning("worker died")
    assert len(lines()) == 1


def test_what_was_left_out_is_told_at_the_end(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    log = EventLog(Clock())
    for _ in range(BURST + 5):
        log.info("request refused")
    lines()
    log.close()
    log.close()
    (line,) = lines()
    assert line.endswith('info lines left out kind="request refused" left_out=5')


def test_what_the_level_forbids_is_not_left_out(lines: Callable[..., list[str]]) -> None:
    lines(level="warning")
    log = EventLog(Clock())
    for _ in range(1000):
        log.info("request refused")
    lines(level="info")
    log.close()
    assert lines() == []


def test_a_line_is_short_whatever_a_client_writes(lines: Callable[..., list[str]]) -> None:
    lines(as_json=True)
    EventLog(Clock()).info("request refused", text="\U000e0001" * 60_000, ids=list(range(100_000)))
    (line,) = lines()
    told = json.loads(line)
    assert told["text"] == "\U000e0001" * MAX_TEXT_LENGTH + "..." and len(line) < 4096
    assert told["ids"] == [*range(MAX_ENTRIES), f"... and {100_000 - MAX_ENTRIES} more"]


def test_an_end_that_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    try:
        with open(writer, "w", closefd=False) as stream:
            monkeypatch.setattr("sys.stderr", stream)
            configure("info", as_json=False)
            clock = Clock()
            log = EventLog(clock)
            for _ in range(2000):  # a pipe holds 64 KiB
                clock.now_s += 1.0
                log.info("loader left", text="x" * 200)
            told = os.read(reader, 1 << 20)
            assert 0 < told.count(b"\n") < 2000 and told.endswith(b"\n")
            log.info("worker died")
            assert b"worker died" in os.read(reader, 1 << 20)
    finally:
        os.close(reader)
        os.close(writer)


def test_refusals_are_counted_and_logged_by_reason(lines: Callable[..., list[str]]) -> None:
    lines(level="info")
    tally = Tally(EventLog(Clock()), lambda client: {"loader": "10.0.0.7", "connection": client.hex()})
    for reason in ("busy", "stopping", "busy"):
        tally.refused(b"\x4c\x9f", Failed(reason, "why"))
    assert tally.values()["refusals"] == {"busy": 2, "stopping": 1}
    written = [line.split(" ", 1)[1] for line in lines()]
    assert written[0] == "warning request refused loader=10.0.0.7 connection=4c9f reason=busy text=why"
    assert [line.split(" ")[0] for line in written] == ["warning", "info", "warning"]


def test_a_pipeline_that_must_be_registered_first_is_no_refusal(lines: Callable[..., list[str]]) -> None:
    """Each connection of a loader meets that after the agent's restart."""
    lines(level="info")
    tally = Tally(EventLog(Clock()), lambda client: {"loader": "10.0.0.7", "connection": client.hex()})
    tally.refused(b"\x4c\x9f", Failed(Failure.UNKNOWN_PIPELINE, "why", digest="ab12"))
    assert tally.values()["refusals"] == {}
    assert lines()[0].endswith(" info pipeline requested loader=10.0.0.7 connection=4c9f digest=ab12")


def test_answers_are_counted() -> None:
    tally = Tally(EventLog(Clock()), lambda client: {"loader": client.hex()})
    for kind, cpu_s in (("file", 0.25), ("pixels", 0.5), ("file", 0.25)):
        tally.answered(kind, cpu_s)
    assert tally.values()["answers"] == {"file": 2, "pixels": 1} and tally.values()["cpu_s"] == 1.0
