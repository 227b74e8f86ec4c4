"""Number of agent cores that a loader could use, in a JSON file per rank. The rank's main process writes it to the
folder in which agents announce themselves, and the program that sizes the fleet reads it. Like an agent's entry, it is
rewritten every `REWRITTEN_S`; if it stays unchanged for `GONE_S`, a reader considers its training gone.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass

from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.entry import SUFFIX

PREFIX = "wanted-"
"""Beginning of a file's name; an agent's entry has another one."""
MAX_NBYTES = 1 << 10
MAX_CORES = 1e6


@dataclass(frozen=True)
class WantedCores:
    """Agent cores that one rank could use.

    Args:
        cores: total agent cores that would help it; 0 if more would not.
        per_agent: mean cores of the agents that it knows.

    Example:
        >>> WantedCores.parse(WantedCores(6.0, 2.0).text()).agents
        3.0
    """

    cores: float
    per_agent: float

    @property
    def agents(self) -> float:
        """The wanted cores as a number of agents."""
        return self.cores / self.per_agent

    def text(self) -> str:
        """Return the file's content: one line of ASCII."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def parse(text: str | bytes) -> WantedCores:
        """Read what `text` wrote. Fields added by a later release are ignored.

        Raises:
            MalformedMessage: the text, which may be anything, is not of this form.
        """
        try:
            values = json.loads(text[:MAX_NBYTES])
            cores, per_agent = float(values["cores"]), float(values["per_agent"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise MalformedMessage(
                f"wanted cores must be a JSON object with numbers: {type(error).__name__}"
            ) from error
        if not (0 <= cores <= MAX_CORES and 0 < per_agent <= MAX_CORES and math.isfinite(cores / per_agent)):
            raise MalformedMessage(f"wanted cores must be from 0 to {MAX_CORES:g}, got {cores:g} by {per_agent:g}")
        return WantedCores(cores, per_agent)


def file_name(job: str, rank: int) -> str:
    """Return the name of one rank's file.

    Args:
        job: name that no other training has.
        rank: the rank, from 0.

    Example:
        >>> file_name("gpu-7:4242", 0)
        'wanted-gpu-7_4242-0.json'
    """
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9._-]+', '_', job)[:150]}-{rank}{SUFFIX}"
