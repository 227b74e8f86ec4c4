"""Whether an agent that was given up serves again. Nothing runs here: the question is on its way between two looks."""

from __future__ import annotations

import contextlib

from sophon_loader.client.connection import Connection
from sophon_loader.errors import PipelineError, SampleMissing, SampleOutsideExport, SampleUnreadable
from sophon_loader.fleet.agreement import BUILD_S, Agreement
from sophon_loader.host.system import now_s

_ABOUT_THE_FILE = (SampleMissing, SampleOutsideExport, SampleUnreadable)
"""Refusals that are about the file, from an agent that serves."""


class Recheck:
    """One trial: registers the pipeline, and then asks for a file.

    An agent that answers a ping only is of no use, nor is one whose workers have not started.

    Args:
        agreement: that was made with the agent.

    Attributes:
        began_s: when the trial began.

    Example:
        >>> recheck = Recheck(agreement)
        >>> while not recheck.answered():
        ...     train_a_step()
        >>> recheck.close()
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        terms = agreement.terms
        self.began_s = self._asked_s = now_s()
        """The second one is when what is waited for was asked for."""
        self._built = False
        """Whether the trial has brought the pipeline; then it waits for the file."""
        self._connection = Connection(terms.address, 1, terms.options)
        self._connection.begin_to_register(terms.registrations[0])

    def answered(self, wait_s: float = 0.0) -> bool:
        """Whether the agent has built the pipeline and sent the file, or has said what is wrong with these.

        Args:
            wait_s: for how long to wait for each answer.

        Raises:
            SophonError: it has said something else, or nothing for too long.
        """
        connection, agreement = self._connection, self._agreement
        if not self._built:
            with contextlib.suppress(PipelineError):  # it is asked for files then
                if connection.registered(wait_s) is None:
                    return self._in_time(BUILD_S)
            self._built = True
            self._asked_s = now_s()
            connection.begin_file(agreement.locations.key_in_export(0))
        try:
            return connection.fetched(wait_s) is not None or self._in_time(0.0)
        except _ABOUT_THE_FILE:
            return True

    def _in_time(self, more_s: float) -> bool:
        """False, while the agent may still answer."""
        patience_s = self._agreement.terms.options.dead_after_s + more_s
        if now_s() - self._asked_s >= patience_s:
            raise self._connection.silent(patience_s)
        return False

    def close(self) -> None:
        """End it."""
        self._connection.close()
