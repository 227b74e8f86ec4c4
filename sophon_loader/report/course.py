"""Reads the log of a run: its epochs, second by second, and the report of each. Pure but for the reading."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sophon_loader.errors import ConfigError
from sophon_loader.report.advice import verdict_of
from sophon_loader.report.page import FAULTS, PlainReport
from sophon_loader.report.run_log import VERSION

LONGEST_LINE = 1 << 20
"""Maximum number of characters in a line; a longer one is not a line of a log."""
MOST = 1e15
"""Maximum of a log's numbers, which start at 0; no run has a larger one."""
LAST_S = 1e11
"""Maximum time of a line, in seconds since 1970."""
SECOND = ("time", "seconds", "for_s", "samples", "waited_s", "wire_bytes", "read_bytes")
OF_WORKERS = ("workers_waited_s", "workers_busy_s", "without_samples_s")
VALUES = ("seconds", "samples", "wire_bytes", "file_bytes", "read_bytes")
BY_NAME = ("limits", "would_bring", "throughput")
PRICES = ("wire_bytes", "agent_s", "loader_s")
OF_AGENTS = ("wanted_agent_cores", "wanted_agents")
OF_FAULTS = ("awaited_s", *FAULTS)
"""Fields that pages are made from. A line must have them, except those of workers and faults."""


@dataclass
class EpochCourse:
    """An epoch, read from a log.

    Args:
        number: of the epoch.
        seconds: its lines of the kind "second", in order.
        told: its newest report; None if it was given up before there was one.
        ended: True if it has delivered its last batch.
    """

    number: int
    seconds: list[dict[str, Any]] = field(default_factory=list)
    told: PlainReport | None = None
    ended: bool = False

    def total(self, name: str) -> float:
        """Return the sum of a number over its seconds."""
        return float(sum(one.get(name, 0) for one in self.seconds))

    def faults(self) -> Counter[str]:
        """Return the number of each fault."""
        found: Counter[str] = Counter()
        for one in self.seconds:
            found.update(one.get("faults", {}))
        return found


@dataclass(frozen=True)
class Course:
    """A run, read from a log.

    Args:
        epochs: epochs with at least one line, in order.
        unreadable: number of lines that cannot be read.
    """

    epochs: tuple[EpochCourse, ...]
    unreadable: int = 0

    @property
    def told(self) -> PlainReport:
        """The newest report that has a verdict, or else the newest one.

        Raises:
            ConfigError: there is no report.
        """
        reports = [one.told for one in self.epochs if one.told is not None]
        if not reports:
            raise ConfigError("the log must have a second of training at least, got less; train on, and make it then")
        return next((one for one in reversed(reports) if verdict_of(one.values).knows), reports[-1])


def read_course(path: str | os.PathLike[str]) -> Course:
    """Read the log of a run; it may still be written to.

    Raises:
        ConfigError: it is not the log of a run, or a newer release wrote it.
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8", errors="replace") as lines:
        course = course_of(lines)
    if not course.epochs and course.unreadable:
        raise ConfigError(
            f"log must be written by OffloadOptions(log=), got {os.fspath(path)!r}, which is no such file"
        )
    return course


def course_of(lines: Iterable[str]) -> Course:
    """Read the lines of a log; a line that was cut off, or is not one of a log, is counted.

    Raises:
        ConfigError: a newer release wrote the line.
    """
    epochs: list[EpochCourse] = []
    unreadable = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            _follow(epochs, _said(line))
        except ConfigError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            unreadable += 1
    return Course(tuple(one for one in epochs if one.seconds or one.told), unreadable)


def _said(line: str) -> dict[str, Any]:
    said = json.loads(line, parse_constant=_no_number) if len(line) <= LONGEST_LINE else None
    if not isinstance(said, dict) or not isinstance(said.get("v"), int):
        raise ValueError("no line of a log")
    if said["v"] > VERSION:
        raise ConfigError(
            f"log must be of version {VERSION} at most, got {said['v']}; use the sophon-report of the release that "
            "has written it"
        )
    return said


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number that a page can show")


def _follow(epochs: list[EpochCourse], said: dict[str, Any]) -> None:
    kind = said["kind"]
    if kind == "begin":
        epochs.append(EpochCourse(int(said["epoch"])))
    elif kind == "second":
        if not epochs:
            epochs.append(EpochCourse(int(said["epoch"])))
        _check_second(said)
        epochs[-1].seconds.append(said)
    elif kind == "report":
        if not epochs:
            epochs.append(EpochCourse(int(said["values"]["epoch"] or 0)))
        _check_values(said["values"])
        rows = [(str(what), str(value)) for what, value in said["rows"]]
        epochs[-1].told = PlainReport(str(said["title"]), rows, dict(said["values"]))
        epochs[-1].ended = bool(said["ended"])


def _check_second(said: dict[str, Any]) -> None:
    _check_numbers({name: said[name] for name in SECOND}, {name: said.get(name, 0) for name in OF_WORKERS})
    _check_numbers(said["choices"], said.get("faults", {}))
    if said["time"] > LAST_S:
        raise ValueError("a line is of a year that no calendar has")


def _check_values(said: dict[str, Any]) -> None:
    _check_numbers({name: said[name] for name in VALUES}, {name: said.get(name, 0) for name in OF_FAULTS})
    _check_numbers(*(said[name] for name in BY_NAME), said.get("choices", {}))
    _check_numbers(*({name: prices[name] for name in PRICES} for prices in said["weighed"].values()))
    for one in said.get("agents", []):
        _check_numbers({name: one[name] for name in ("samples", "wire_bytes", "lacks")})
        if not all(isinstance(one[name], str) for name in ("agent", "group", "state", "why")):
            raise ValueError("an agent has an address and a state")
        _check_numbers({name: one.get(name, 0) for name in ("lost_at", "losses")})
        if one.get("lost_at", 0) > LAST_S:
            raise ValueError("an agent was lost in a year that no calendar has")
    if not isinstance(said.get("agent_address", ""), str):
        raise ValueError("an agent's address is a text")
    wanted = {name: said.get(name) for name in OF_AGENTS}
    _check_numbers({name: value for name, value in wanted.items() if value is not None})
    if not isinstance(said.get("bottleneck", ""), (str, type(None))):
        raise ValueError("what limits has a name")
    if not isinstance(said["offloading"], bool) or not isinstance(said["summary"], str):
        raise ValueError("a report says whether and what was offloaded")


def _check_numbers(*numbers: dict[str, Any]) -> None:
    for value in (value for some in numbers for value in some.values()):
        if not isinstance(value, (int, float)) or not 0 <= value <= MOST:
            raise ValueError(f"{value!r} is no number of a run")
