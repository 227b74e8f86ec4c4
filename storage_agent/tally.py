"""What the agent has done and refused, counted and logged, for `sophon-agent status` and for whoever watches."""

from __future__ import annotations

import os
import time
from collections import Counter

from sophon_loader import __version__
from sophon_loader.encodings.names import encoding_names, missing
from sophon_loader.host import cores_available
from sophon_loader.pipeline.software import software
from sophon_loader.wire.messages import Failed, Failure, Refused
from storage_agent.log import EventLog

_ORDINARY = (Failure.UNKNOWN_PIPELINE, Failure.STOPPING)
"""Refusals that loaders deal with by themselves."""


class Tally:
    """Counts since the start.

    Args:
        log: for refusals.

    Example:
        >>> tally = Tally(EventLog())
        >>> tally.answered("file", cpu_s=0.001)
        >>> tally.values()["answers"]
        {'file': 1}
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._started_s = time.monotonic()
        self._cpu_s = 0.0
        self.answers: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()

    def answered(self, kind: str, cpu_s: float) -> None:
        """A sample has been answered.

        Args:
            kind: its encoding, or the name of another message.
            cpu_s: CPU seconds of reading, ops and encoding.
        """
        self.answers[kind] += 1
        self._cpu_s += cpu_s

    def refused(self, client: str, message: Failed | Refused) -> None:
        """Something has been refused.

        Args:
            client: whom, as the log names it.
            message: what it was told.
        """
        self._refusals[message.failure] += 1
        write = self._log.info if message.failure in _ORDINARY else self._log.warning
        write("refused", client=client, reason=message.failure, text=message.text)

    def values(self) -> dict[str, object]:
        """The counts, and what this host is."""
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_s, 1),
            "cores": cores_available(),
            "encodings": list(encoding_names()),
            "encodings_missing": missing(),
            "software": dict(software()),
            "answers": dict(self.answers),
            "refusals": dict(self._refusals),
            "cpu_s": round(self._cpu_s, 3),
        }
