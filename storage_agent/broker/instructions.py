"""What `Desk` and `Staff` have the broker do. They decide, it moves bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sophon_loader.encodings.encoding import Payload
from sophon_loader.wire.messages import ExportQuestion, Failed, Message, Refused
from storage_agent.jobs.jobs import Job


@dataclass(frozen=True)
class Tell:
    """Send a message to a client at once."""

    client: bytes
    message: Message


@dataclass(frozen=True)
class Refuse:
    """Send a refusal at once, and count its reason."""

    client: bytes
    message: Failed | Refused


@dataclass(frozen=True)
class Greet:
    """Send a Welcome, with what this host offers now.

    Args:
        client: to whom.
        version: of the protocol, on which both ends have agreed.
        exports: that the client may see.
    """

    client: bytes
    version: int
    exports: Sequence[str]


@dataclass(frozen=True)
class TellStatus:
    """Send the agent's numbers about itself.

    Args:
        client: to whom.
        exports: that the client may see.
    """

    client: bytes
    exports: Sequence[str]


@dataclass(frozen=True)
class Read:
    """Have a reader thread answer jobs with their files.

    Args:
        jobs: samples of one client or several.
        note: why the cut is earlier than asked; "" when it is not.
    """

    jobs: Sequence[Job]
    note: str = ""


@dataclass(frozen=True)
class Queue:
    """Hand jobs to the staff."""

    jobs: Sequence[Job]


@dataclass(frozen=True)
class Build:
    """Hand a registration to the staff: a worker shall say how far it can be run."""

    client: bytes
    digest: str
    registration: bytes


@dataclass(frozen=True)
class LookUp:
    """Have a reader thread answer a question about an export."""

    client: bytes
    question: ExportQuestion


@dataclass(frozen=True)
class SendToWorker:
    """Send a message to a worker.

    Args:
        worker: its number.
        frames: see `workers/message_types.py`.
    """

    worker: int
    frames: list[Payload]


@dataclass(frozen=True)
class Start:
    """Start one more worker.

    Args:
        with_ops: True for one that runs named ops, False for one that runs programs.
    """

    with_ops: bool = False


@dataclass(frozen=True)
class EndWorker:
    """End a worker at once.

    Args:
        worker: its number.
    """

    worker: int


@dataclass(frozen=True)
class GiveUp:
    """End the agent: it cannot serve.

    Args:
        reason: for the person who started it.
    """

    reason: str


@dataclass(frozen=True)
class Log:
    """Write a line about an event.

    Args:
        event: its name, always the same words.
        client: whom it concerns, if one.
        warning: whether an operator should look at it.
        details: name -> what else is known; plain data.
    """

    event: str
    client: bytes | None = None
    warning: bool = False
    details: dict[str, Any] = field(default_factory=dict)


Instruction = (
    Tell | Refuse | Greet | TellStatus | Read | Queue | Build | LookUp | SendToWorker | Start | EndWorker | GiveUp | Log
)
