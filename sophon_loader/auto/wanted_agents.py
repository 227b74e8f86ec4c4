"""How many cores of agents the loader could use: worked out every few seconds, and told in the folder of the agents."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from sophon_loader.host.kept_file import KeptFile
from sophon_loader.logs import log_line
from sophon_loader.measures.verdict import Verdict
from sophon_loader.ranks.seeding import rank_of_all
from sophon_loader.wire.entry import GONE_S, REWRITTEN_S
from sophon_loader.wire.wanted_cores import PREFIX, WantedCores, file_name

EVERY_S = 5.0
"""How often it is worked out: some milliseconds of the main process."""
CLOSE_S = 2.0
"""How long the end of a loader waits for its file to be removed; behind that, readers take it for gone by its age."""
_NAMES_OF_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_NO_NAME = ("", "none")
"""The second is torchrun's for a run that was given none."""

log = logging.getLogger(__name__)


class AgentCores:
    """How many a run could use, worked out again every few seconds, for the size of a fleet.

    Attributes:
        wanted: cores as agents promise them; None while nothing is known.
    """

    def __init__(self) -> None:
        self.wanted: float | None = None
        self._passed_s = math.inf

    def after(self, seconds: float, verdict: Verdict) -> None:
        """After a window in which ways to send samples have been weighed.

        Args:
            seconds: its length.
            verdict: at its end.
        """
        self._passed_s += seconds
        if self._passed_s >= EVERY_S and verdict.wanted_cores is not None:
            self._passed_s = 0.0
            self.wanted = verdict.wanted_cores


class WantedFile:
    """The file of one loader in a folder in which agents announce themselves.

    It is written anew by a thread of its own until `close`, or the end of the loader or the process: while a model is
    evaluated between two epochs nobody iterates, and no fleet must shrink for that. A forked copy of the loader leaves
    it alone, and has one of its own once it iterates.
    """

    def __init__(self) -> None:
        self._kept: KeptFile | None = None
        self._told = _Told()
        self._end: Callable[[], object] = lambda: None

    def say(self, folder: str, wanted: WantedCores | None) -> None:
        """From now on say this. Takes no time: the disk is the thread's.

        Args:
            folder: of the agents; "" for none.
            wanted: None for what was said last.
        """
        if not folder or wanted is None:
            return
        kept, text = self._kept, wanted.text()
        if kept is not None and not (kept.is_own and kept.path.parent == Path(folder)):
            self._end()
            kept = None
        if kept is not None:
            kept.text = text
            if kept.writing_s > GONE_S - REWRITTEN_S:
                self._told("its disk does not answer", kept.writing_s)
            return
        path = Path(folder) / file_name(_job(), rank_of_all()[0])
        self._told = _Told(folder)
        self._kept = KeptFile(
            path, text, prefix=PREFIX, every_s=REWRITTEN_S, told=self._told, thread="sophon-wanted-cores"
        )
        self._kept.start()
        self._end = weakref.finalize(self, self._kept.close, CLOSE_S)

    def close(self) -> None:
        """Remove it; what is said later begins anew."""
        self._end()
        self._kept = None


class _Told:
    """Says once why a file cannot be written; no warning, since few size a fleet by it, and others may have mounted the
    folder read-only. It holds no loader, since the end of that ends the thread that calls this."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._said = False

    def __call__(self, reason: str, took_s: float) -> None:
        if reason and not self._said:
            self._said = True
            remedy = "whoever sizes the fleet does not know of this training; give it the right to write there"
            log.info(log_line("wanted cores not written", folder=self._folder, reason=reason, remedy=remedy))


def _job() -> str:
    """A name that no other loader has: several of a process or of a job may have one rank, and processes in several
    containers of a host one number."""
    named = next((name for key in _NAMES_OF_JOBS if (name := os.environ.get(key, "")) not in _NO_NAME), "")
    # The end of a long name is cut off, and what tells processes apart must not be.
    named, host = (re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:60] for text in (named, socket.gethostname()))
    return f"{named}{'-' if named else ''}{host}-{os.getpid()}-{secrets.token_hex(3)}"
