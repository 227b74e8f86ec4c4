"""The agent's log: one line per event to the logger `storage_agent`, and never more than a few per second.

    2026-11-23T12:00:00.123+00:00 info loader joined loader=gpu-7@10.0.0.7 connection=4c9f12ab software="torch 2.9"

A line is the time, the level, the event, then facts as key=value. The event says who or what, then what happened.
Facts have the same name in every event. They are `loader` (key and host), `connection` (one of its sockets), `address`,
`reason` (why) and `remedy` (what to do). `sophon_loader.logs.log_line` writes values, and quotes
those with a space.

This module does not decide what is an event: `Desk`, `Staff` and the broker do.
"""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from sophon_loader.logs import log_line

LEVELS = ("info", "warning", "error")
BURST = 20
"""Maximum number of lines of one kind of event that may be written at once."""
PER_S = 1.0
"""Lines of one kind of event that may be written per second in the long run. Clients can cause five kinds, of at most
700 bytes a line: up to 300 MB a day."""
MAX_TEXT_LENGTH = 300
"""Maximum number of characters of one detail, so that a line stays below the size that a pipe takes at once (4096
bytes)."""
MAX_ENTRIES = 8
"""Maximum number of entries of a detail that is a list."""

_LOGGER = logging.getLogger("storage_agent")


class EventLog:
    """Writes events, as many as the limits allow. Lines left out are counted, and the next line of their kind reports
    them.

    The limit is per kind of event, so that a flood of refusals does not hide a worker's death.

    Args:
        clock: monotonic seconds.

    Example:
        >>> log = EventLog()
        >>> log.info("loader left", loader="10.0.0.7", unanswered=3)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._allowed: dict[str, tuple[float, float]] = {}
        """Event -> number of lines that may be written, and the time of that number, s."""
        self._left_out: dict[str, int] = {}

    def info(self, event: str, **details: Any) -> None:
        """Write an ordinary event.

        Args:
            event: its name, always the same words.
            details: name -> plain data.
        """
        self.write(event, details)

    def warning(self, event: str, **details: Any) -> None:
        """Write an event that an operator should look at.

        Args:
            event: its name, always the same words.
            details: name -> plain data.
        """
        self.write(event, details, warning=True)

    def write(self, event: str, details: Mapping[str, Any], *, warning: bool = False) -> None:
        """Write an event, or count it as left out.

        Args:
            event: its name, always the same words.
            details: name -> plain data.
            warning: True if an operator should look at it.
        """
        level = logging.WARNING if warning else logging.INFO
        if not _LOGGER.isEnabledFor(level):
            return
        if not self._may_write(event):
            self._left_out[event] = self._left_out.get(event, 0) + 1
            return
        told = {name: _short(value) for name, value in details.items()}
        if left_out := self._left_out.pop(event, 0):
            told["left_out"] = left_out
        _LOGGER.log(level, event, extra={"details": told})

    def close(self) -> None:
        """Report the lines left out that no later line has reported."""
        for event, count in self._left_out.items():
            _LOGGER.info("lines left out", extra={"details": {"kind": event, "left_out": count}})
        self._left_out.clear()

    def _may_write(self, event: str) -> bool:
        now_s = self._clock()
        allowed, since_s = self._allowed.get(event, (float(BURST), now_s))
        allowed = min(float(BURST), allowed + (now_s - since_s) * PER_S)
        may = allowed >= 1.0
        self._allowed[event] = (allowed - 1.0 if may else allowed, now_s)
        return may


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_TEXT_LENGTH:
        return value[:MAX_TEXT_LENGTH] + "..."
    if isinstance(value, list):
        more = [f"... and {len(value) - MAX_ENTRIES} more"] if len(value) > MAX_ENTRIES else []
        return [_short(entry) for entry in value[:MAX_ENTRIES]] + more
    return value


def configure(level: str, *, as_json: bool) -> None:
    """Write the log to standard error, once per process; a second call replaces the first.

    Args:
        level: one of `LEVELS`.
        as_json: one JSON object per line, instead of text.
    """
    handler = _Stderr(sys.stderr)
    handler.setFormatter(_Json() if as_json else _Text())
    _LOGGER.handlers[:] = [handler]
    _LOGGER.setLevel(level.upper())
    _LOGGER.propagate = False


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # no generic class before Python 3.11
    """Leaves a line out if the reader of a pipe or terminal is stuck: the broker must not wait for it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            ready = select.select([], [self.stream], [], 0)[1]
        except (OSError, ValueError):  # no descriptor, as in some tests, or one above what select takes
            ready = [self.stream]
        if ready:
            super().emit(record)


class _Text(logging.Formatter):
    """`2026-11-23T12:00:00.123+00:00 warning worker died worker=2 exit_code=-9`."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{_time(record)} {record.levelname.lower()} {log_line(record.getMessage(), **_details(record))}"


class _Json(logging.Formatter):
    """`{"time": ..., "level": "warning", "event": "worker died", "worker": 2, "exit_code": "-9"}`."""

    def format(self, record: logging.LogRecord) -> str:
        told = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        return json.dumps({**told, **_details(record)})


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


def _details(record: logging.LogRecord) -> dict[str, Any]:
    details: dict[str, Any] = getattr(record, "details", {})
    return details
