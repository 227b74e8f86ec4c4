"""Trying an agent again that workers have given up, in the background. Nothing runs here meanwhile: whoever wants to
know looks from time to time, and the question is on its way between two looks.
"""

from __future__ import annotations

import contextlib
import logging

from sophon_loader.client.connection import Connection
from sophon_loader.errors import PipelineError, SampleMissing, SampleOutsideExport, SampleUnreadable, SophonError
from sophon_loader.host.system import now_s
from sophon_loader.logs import log_line
from sophon_loader.main.agreement import BUILD_S, Agreement
from sophon_loader.routes.shared import SharedRoute
from sophon_loader.routes.state import FIRST_PAUSE_S, MAX_PAUSE_S

_ABOUT_THE_FILE = (SampleMissing, SampleOutsideExport, SampleUnreadable)
"""Refusals that are about the file, from an agent that serves."""

log = logging.getLogger(__name__)


class Revival:
    """Of one loader's agent, in the main process, which outlives the workers and their epochs.

    A trial registers the pipeline and then asks for a file. An agent that answers a ping only is of no use, nor is one
    whose workers have not started.

    Example:
        >>> revival = Revival()
        >>> revival.look(run.agreement, route)  # before each batch
    """

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._due_s: float | None = None
        """When to try; None as long as the agent is there."""
        self._connection: Connection | None = None
        self._began_s = self._asked_s = 0.0
        """When the trial began, and when what it waits for was asked for."""
        self._built = False
        """Whether the trial has brought the pipeline; then it waits for the file."""

    def look(self, agreement: Agreement | None, route: SharedRoute) -> None:
        """Try the agent if it is time, and see whether it has answered. Takes no time.

        Args:
            agreement: with the agent; None where there is none to try.
            route: what the workers have found out, and where they look whether the agent is back.
        """
        gone_s = route.gone_s
        if not gone_s or agreement is None:
            self._due_s = None
            return
        if self._due_s is None:
            if gone_s - route.back_s > self._pause_s:
                self._pause_s = FIRST_PAUSE_S  # it has been of use for longer than it was left alone
            self._due_s = gone_s + self._pause_s
        try:
            if self._connection is None and now_s() >= self._due_s:
                self._ask(agreement)
            if self._connection is not None and self._answered(self._connection, agreement):
                route.back(self._began_s)
                self.close()
                log.info(log_line("agent answers again", agent=agreement.terms.address))
        except SophonError as error:
            self.close()
            self._due_s = now_s() + self._pause_s
            log.info(log_line("agent still gone", next_try_s=self._pause_s, reason=error))

    def _answered(self, connection: Connection, agreement: Agreement) -> bool:
        """Whether the agent has built the pipeline and sent the file, or has said what is wrong with these.

        Raises:
            SophonError: it has said something else, or nothing for too long.
        """
        if not self._built:
            with contextlib.suppress(PipelineError):  # it is asked for files then
                if connection.registered(0) is None:
                    return self._in_time(connection, agreement, BUILD_S)
            self._built = True
            self._asked_s = now_s()
            connection.begin_file(agreement.locations.key_in_export(0))
        try:
            return connection.fetched(0) is not None or self._in_time(connection, agreement, 0.0)
        except _ABOUT_THE_FILE:
            return True

    def _in_time(self, connection: Connection, agreement: Agreement, more_s: float) -> bool:
        """False, while the agent may still answer."""
        patience_s = agreement.terms.options.dead_after_s + more_s
        if now_s() - self._asked_s >= patience_s:
            raise connection.silent(patience_s)
        return False

    def _ask(self, agreement: Agreement) -> None:
        terms = agreement.terms
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        self._began_s = self._asked_s = now_s()
        self._built = False
        self._connection = Connection(terms.address, 1, terms.options)
        self._connection.begin_to_register(terms.registrations[0])

    def close(self) -> None:
        """End a trial that is under way."""
        self._due_s = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
