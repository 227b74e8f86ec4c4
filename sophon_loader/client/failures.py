"""From a failure on the wire to the exception that the user sees."""

from __future__ import annotations

from sophon_loader.errors import (
    AgentBusy,
    AgentError,
    MalformedMessage,
    MessageTooLong,
    PipelineError,
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
    Failure.TOO_LONG: MessageTooLong,
    Failure.UNKNOWN_EXPORT: UnknownExport,
    Failure.BAD_PIPELINE: PipelineError,
    Failure.BUSY: AgentBusy,
    Failure.MISSING: SampleMissing,
    Failure.OUTSIDE_EXPORT: SampleOutsideExport,
    Failure.UNREADABLE: SampleUnreadable,
}


def error_of(failure: str, text: str) -> SophonError:
    """The exception for a kind of failure; an unknown kind is an AgentError that names it."""
    cls = _ERRORS.get(failure)
    return cls(text) if cls is not None else AgentError(f"{failure}: {text}")
