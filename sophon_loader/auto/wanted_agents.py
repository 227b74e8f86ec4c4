"""Number of agent cores that the loader could use: computed every few seconds, and written to the agents' folder."""

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
"""Seconds between two computations, which take some milliseconds of the main process."""
CLOSE_S = 2.0
"""Time limit for removing a loader's file at its end, in seconds; later, readers know by its age that it is gone."""
_NAMES_OF_JOBS = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
_NO_NAME = ("", "none")
"""Names that count as missing; the second is torchrun's for a run without a name."""

log = logging.getLogger(__name__)


class AgentCores:
    """Number of agent cores that a run could use, computed again every few seconds, for the size of a fleet.

    Attributes:
        wanted: cores as agents promise them; None if unknown.
    """

    def __init__(self) -> None:
        self.wanted: float | None = None
        self._passed_s = math.inf

    def after(self, seconds: float, verdict: Verdict) -> None:
        """Add a window in which choices have been weighed.

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

    A separate thread rewrites it until `close`, or the end of the loader or the process. It does so while a model is
    evaluated between two epochs, too, since no fleet must shrink for that. A forked copy of the loader leaves it alone,
    and has its own once it iterates.
    """

    def __init__(self) -> None:
        self._kept: KeptFile | None = None
        self._told = _Told()
        self._end: Callable[[], object] = lambda: None

    def say(self, folder: str, wanted: WantedCores | None) -> None:
        """Write this from now on. Takes no time: the thread writes to the disk.

        Args:
            folder: of the agents; "" for none.
            wanted: None for the last value.
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
        """Remove the file; a later `say` begins again."""
        self._end()
        self._kept = None


class _Told:
    """Logs once why a file cannot be written. It does not warn, since few size a fleet by it, and others may have
    mounted the folder read-only. It holds no loader, since the end of that ends the thread that calls this."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder
        self._said = False

    def __call__(self, reason: str, took_s: float) -> None:
        if reason and not self._said:
            self._said = True
            remedy = "whoever sizes the fleet does not know of this training; give it the right to write there"
            log.info(log_line("wanted cores not written", folder=self._folder, reason=reason, remedy=remedy))


def _job() -> str:
    """Return a name that no other loader has. The rank is not enough: loaders of a process or a job may share it, and
    processes in several containers of a host may share a number."""
    named = next((name for key in _NAMES_OF_JOBS if (name := os.environ.get(key, "")) not in _NO_NAME), "")
    # The end of a long name is cut off, and what tells processes apart must not be.
    named, host = (re.sub(r"[^A-Za-z0-9._-]+", "_", text)[:60] for text in (named, socket.gethostname()))
    return f"{named}{'-' if named else ''}{host}-{os.getpid()}-{secrets.token_hex(3)}"
