"""What a loader worker wants, what became of it, and what is to be done about it: values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from sophon_loader.client.drawn_program import DrawnProgram
from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import Failed, Message, Sample


class BatchId(NamedTuple):
    """The n-th batch of the n-th iteration over the loader; `epoch` decides its random numbers."""

    iteration: int
    epoch: int
    number: int


@dataclass(frozen=True)
class Wanted:
    """One sample to fetch, and what is known of it by then.

    Args:
        source: number of the folder that it lies in; each has a pipeline of its own.
        sample: its index in the dataset.
        cut, encoding: what the agent is asked for; it may answer with less.
        key: path of its file in the export, with `/` (relative to its source's root where there is no agent).
        occurrence: how often this iteration has met the sample before.
        prices: of wire, agent and loader, and for which cores, if the agent is to choose; see `Fetch`.
        here: it is read on this host, and no agent is asked.
        before: what tells the mounted file from one that takes its place, as it was before an agent was asked for it,
            or, where it is not mounted, what tells the agents' connections from later ones; None where no copy is to be
            kept.
        in_cache: whether there is a copy in the cache on this host.
        drawn: its program, by which an agent is asked that takes programs; None to ask by the pipeline.
        program_refused: the agent has refused its program.
    """

    source: int
    sample: int
    cut: int
    encoding: str
    key: str
    occurrence: int = 0
    prices: tuple[float, float, float, float] | None = None
    here: bool = False
    before: tuple[int, int, int] | tuple[tuple[int, int], ...] | None = None
    in_cache: bool = False
    drawn: DrawnProgram | None = None
    program_refused: bool = False

    @property
    def is_file(self) -> bool:
        """Whether the file as it is is wanted, for which no agent needs to know what is done with it."""
        return self.cut == 0 and self.encoding == "file"

    def as_file(self) -> Wanted:
        """The same sample, as its file."""
        return replace(self, cut=0, encoding="file", prices=None, drawn=None)


@dataclass(frozen=True)
class Reply:
    """What became of a wanted sample: `sample` and `payload`, or `failed`, or `unusable`, or none of them (the agent is
    gone, or was not asked).

    Args:
        wanted: what was asked for.
        position: in its batch, from 0.
        sample, payload: the agent's answer.
        failed: the agent's refusal.
        unusable: why nothing can be made of what the agent has sent.
        why: the agent was given up: what was got instead of a sample; "" where it was not asked.
        turnaround_s: seconds from asking to the reply.
    """

    wanted: Wanted
    position: int
    sample: Sample | None = None
    payload: Payload = b""
    failed: Failed | None = None
    unusable: str = ""
    turnaround_s: float = 0.0
    why: str = ""

    @property
    def is_nothing(self) -> bool:
        """Whether no agent has answered."""
        return self.sample is None and self.failed is None and not self.unusable


@dataclass
class Request:
    """A wanted sample that has no reply yet, and what its requests have met with."""

    batch: BatchId
    position: int
    wanted: Wanted
    again: bool = False
    """Whether it has been asked for before."""
    damaged: int = 0
    """How many of its answers were."""
    drawn: DrawnProgram | None = None
    """The program by which it was asked for last."""


@dataclass(frozen=True)
class Ask:
    """Instruction: send a Fetch.

    Args:
        batch, source: of all samples in it.
        items: per sample its request number, which the answer will have, and what is wanted.
    """

    batch: BatchId
    source: int
    items: list[tuple[int, Wanted]]


@dataclass(frozen=True)
class Say:
    """Instruction: send this message."""

    message: Message


@dataclass(frozen=True)
class Renew:
    """Instruction: make the connection anew, and say so (`Requests.reconnected`)."""


@dataclass(frozen=True)
class RegisterAgain:
    """Instruction: the agent has forgotten the pipeline of this source; register it before the next Ask."""

    source: int


Instruction = Ask | Say | Renew | RegisterAgain
