"""Kinds of failure on the wire and their exceptions: the agent raises one, and the loader raises it again."""

from __future__ import annotations

from sophon_loader.errors import (
    AgentBusy,
    AgentError,
    CorruptMessage,
    MalformedMessage,
    MessageTooLong,
    PipelineError,
    ProgramRefused,
    SampleMissing,
    SampleOutsideExport,
    SampleUnreadable,
    SophonError,
    UnknownExport,
    VersionMismatch,
)
from sophon_loader.wire.messages import Failure

_ERRORS: dict[str, type[SophonError]] = {
    Failure.VERSION: VersionMismatch,
    Failure.MALFORMED: MalformedMessage,
    Failure.CORRUPT: CorruptMessage,
    Failure.TOO_LONG: MessageTooLong,
    Failure.UNKNOWN_EXPORT: UnknownExport,
    Failure.BAD_PIPELINE: PipelineError,
    Failure.BAD_PROGRAM: ProgramRefused,
    Failure.BUSY: AgentBusy,
    Failure.MISSING: SampleMissing,
    Failure.OUTSIDE_EXPORT: SampleOutsideExport,
    Failure.UNREADABLE: SampleUnreadable,
}
_FAILURES = {error: failure for failure, error in _ERRORS.items()}


def error_of(failure: str, text: str) -> SophonError:
    """Return the exception for a kind of failure. An unknown kind gives an AgentError that names it.

    Args:
        failure: one of `Failure`, or a word that this release does not know.
        text: the agent's message.
    """
    cls = _ERRORS.get(failure)
    return cls(text) if cls is not None else AgentError(f"{failure}: {text}")


def failure_of(error: SophonError) -> str:
    """Return the kind of failure that stands for `error` on the wire.

    Raises:
        KeyError: the error's class has no kind. Each error that can reach a loader must be in the table.
    """
    return _FAILURES[type(error)]
