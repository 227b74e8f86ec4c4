"""How many cores of agents a loader could use: a JSON file per rank in the folder in which agents announce themselves,
written by the rank's main process, read by whatever sizes the fleet. As an agent's entry, it is written anew every
`REWRITTEN_S`, and one that a reader has seen unchanged for `GONE_S` is that of a training that is gone.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass

from sophon_loader.errors import MalformedMessage
from sophon_loader.wire.entry import SUFFIX

PREFIX = "wanted-"
"""Of a file's name; an agent's entry has another one."""
MAX_NBYTES = 1 << 10
MAX_CORES = 1e6


@dataclass(frozen=True)
class WantedCores:
    """What one rank says.

    Args:
        cores: of agents, all together, that would be of use to it; 0 where none would.
        per_agent: cores of one agent, in the mean over those that it knows.

    Example:
        >>> WantedCores.parse(WantedCores(6.0, 2.0).text()).agents
        3.0
    """

    cores: float
    per_agent: float

    @property
    def agents(self) -> float:
        """The same in agents."""
        return self.cores / self.per_agent

    def text(self) -> str:
        """The file's content: one line of ASCII."""
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def parse(text: str | bytes) -> WantedCores:
        """The inverse of `text`. What a later release adds is not looked at.

        Raises:
            MalformedMessage: it is none. The text may be anything at all.
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
    """Of the file of one rank.

    Args:
        job: a text that no other training has.
        rank: from 0.

    Example:
        >>> file_name("gpu-7:4242", 0)
        'wanted-gpu-7_4242-0.json'
    """
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9._-]+', '_', job)[:150]}-{rank}{SUFFIX}"
