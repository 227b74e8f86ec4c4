"""Trying an agent again that workers have given up, in the background. Nothing runs here meanwhile: whoever wants to
know looks from time to time, and the question is on its way between two looks.
"""

from __future__ import annotations

import logging

from sophon_loader.client.connection import Connection
from sophon_loader.client.session import Terms
from sophon_loader.errors import SophonError
from sophon_loader.host import now_s
from sophon_loader.main.agreement import BUILD_S, Agreement
from sophon_loader.wire.failures import error_of
from sophon_loader.wire.messages import Failed, Failure, Fetch, Registered, Sample
from sophon_loader.workers.absence import Absence

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""How long the agent is left alone before it is tried, and how long at most: twice as long each time."""
_ABOUT_THE_FILE = frozenset({Failure.MISSING, Failure.OUTSIDE_EXPORT, Failure.UNREADABLE})
"""Refusals that are about the file, from an agent that serves."""
_TRIAL = 1
_AT_ONCE = 8
"""Messages that are looked at in one look; an agent that is well sends two."""

log = logging.getLogger(__name__)


class Revival:
    """Of one loader's agent, in the main process, which outlives the workers and their epochs.

    A trial registers the pipeline and asks for a file. An agent that answers a ping only is of no use, nor is one whose
    workers have not started.

    Example:
        >>> revival = Revival()
        >>> revival.look(run.agreement, statistics.absence)  # before each batch
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._due_s: float | None = None
        """When to try; None as long as the agent is there."""
        self._connection: Connection | None = None
        self._asked_s = 0.0
        self._sent = self._built = False
        """What the trial has brought: the file, the pipeline."""

    def look(self, agreement: Agreement | None, absence: Absence) -> None:
        """Try the agent if it is time, and see whether it has answered. Takes no time.

        Args:
            agreement: with the agent; None where there is none to try.
            absence: what the workers have found out, and where they look whether the agent is back.
        """
        gone_s = absence.gone_s
        if not gone_s or agreement is None:
            self._due_s = None
            return
        if self._due_s is None:
            if gone_s - absence.back_s > self._pause_s:
                self._pause_s = FIRST_PAUSE_S  # it has been of use for longer than it was left alone
            self._due_s = gone_s + self._pause_s
        try:
            if self._connection is None and now_s() >= self._due_s:
                self._ask(agreement)
            if self._connection is not None and self._answered(self._connection, agreement.terms):
                absence.back(self._asked_s)
                self.close()
                log.info("the agent at %s answers again", agreement.terms.address)
        except SophonError as error:
            self.close()
            self._due_s = now_s() + self._pause_s
            log.info("the agent is tried again in %g s: %s", self._pause_s, error)

    def _answered(self, connection: Connection, terms: Terms) -> bool:
        """Whether the agent has built the pipeline and sent the file, or has said what is wrong with these.

        Raises:
            SophonError: it has said something else, or nothing for too long.
        """
        for _ in range(_AT_ONCE):
            if (received := connection.receive(0)) is None:
                break
            message = received[0]
            if isinstance(message, Registered):
                self._built = True
            elif isinstance(message, Sample):
                self._sent = self._sent or message.id == _TRIAL
            elif isinstance(message, Failed) and message.failure == Failure.BAD_PIPELINE:
                self._built = True  # it is asked for files then
            elif isinstance(message, Failed) and message.failure in _ABOUT_THE_FILE:
                self._sent = True
            elif isinstance(message, Failed):
                raise error_of(message.failure, message.text)
        patience_s = terms.options.dead_after_s + (BUILD_S if self._sent else 0.0)
        if not (self._sent and self._built) and now_s() - self._asked_s >= patience_s:
            raise connection.silent(patience_s)
        return self._sent and self._built

    def _ask(self, agreement: Agreement) -> None:
        terms = agreement.terms
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        self._asked_s = now_s()
        self._sent = self._built = False
        self._connection = Connection(terms.address, 1, terms.options)
        self._connection.begin_to_register(terms.registrations[0])
        files = {_TRIAL: agreement.locations.key_in_export(0)}
        self._connection.send(Fetch.of_files(terms.address.export, files))

    def close(self) -> None:
        """End a trial that is under way."""
        self._due_s = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
