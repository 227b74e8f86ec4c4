"""What the agent has done and refused, counted and logged, for `sophon-agent status` and for whoever watches."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping

from sophon_loader import __version__
from sophon_loader.encodings.catalogue import encoding_names, missing
from sophon_loader.host.system import cores_available
from sophon_loader.pipeline.software import software
from sophon_loader.wire.messages import Failed, Failure, Refused, Registered
from storage_agent.broker.instructions import Log
from storage_agent.host.log import EventLog


class Tally:
    """Counts since the start.

    Args:
        log: where events are written.
        facts_of: whose a client is, by its routing id, as the log tells it.

    Example:
        >>> tally = Tally(EventLog(), frontend.facts_of)
        >>> tally.answered("file", cpu_s=0.001)
        >>> tally.values()["answers"]
        {'file': 1}
    """

    def __init__(self, log: EventLog, facts_of: Callable[[bytes], Mapping[str, str]]) -> None:
        self._log = log
        self._facts_of = facts_of
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

    def happened(self, event: Log) -> None:
        """Write what desk or staff say."""
        whose = {} if event.client is None else self._facts_of(event.client)
        self._log.write(event.event, {**whose, **event.details}, warning=event.warning)

    def registered(self, client: bytes, message: Registered) -> None:
        """A pipeline has been built.

        Args:
            client: whose it is.
            message: what it is told.
        """
        details = {"digest": message.digest, "ops": message.ops}
        self.happened(Log("pipeline registered", client, details=details))

    def refused(self, client: bytes, message: Failed | Refused) -> None:
        """Something has been refused. That a pipeline must be registered first is not counted: each connection hears
        it when the agent has restarted.

        Args:
            client: to whom.
            message: what it is told.
        """
        if isinstance(message, Failed) and message.failure == Failure.UNKNOWN_PIPELINE:
            self.happened(Log("pipeline requested", client, details={"digest": message.digest}))
            return
        self._refusals[message.failure] += 1
        details = {"reason": message.failure, "text": message.text}
        self.happened(Log("request refused", client, message.failure != Failure.STOPPING, details))

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
