"""Every exception of the project; all of them are public names of `sophon_loader`.

    SophonError
    ├── ConfigError (ValueError)         an argument that cannot work
    │   └── PlanError                    facts or rates a policy cannot plan with
    ├── NoRoom (RuntimeError)            too few descriptors, or too little shared memory, for a batch
    ├── PipelineError (ValueError)       a pipeline description that cannot be built
    │   └── TooManyPixels                an op that would make a larger image than an agent runs for others
    ├── EncodingError                    a value that cannot be encoded, a payload that cannot be decoded
    ├── WireError                        a message that breaks the protocol
    │   ├── MalformedMessage             not what docs/wire.md says
    │   ├── CorruptMessage               not what was sent: damaged on its way
    │   ├── MessageTooLong               over a stated limit
    │   └── VersionMismatch              the two ends speak no common version
    ├── AgentError                       an agent that cannot or will not serve
    │   ├── AgentUnreachable (ConnectionError)
    │   ├── KeyRefused (PermissionError) no key where one is needed, or one that is not let in
    │   ├── UnknownExport
    │   └── AgentBusy
    └── SampleError                      one sample that the agent cannot serve, or serves wrongly
        ├── SampleDiffers                 not what this host has or computes
        ├── SampleMissing (FileNotFoundError)
        ├── SampleOutsideExport (PermissionError)
        └── SampleUnreadable (OSError)

Every class can be built from one string, because DataLoader re-raises a worker's exception as
`type(message)`. A failure of an op itself (a corrupt image, say) is raised as the op raised it, with a note.
"""

from __future__ import annotations

import contextlib
import copy
import signal
import sys
import types
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, TypeVar

    _Error = TypeVar("_Error", bound=BaseException)


class SophonError(Exception):
    """Base of every error that this project raises on purpose.

    Example:
        >>> try:
        ...     for images, labels in loader:
        ...         step(images, labels)
        ... except sophon_loader.SampleMissing as error:
        ...     print("a file has gone since the data set was listed:", error)
    """


class OffloadWarning(UserWarning):
    """The loader does less than it was asked for; issued once per loader, and noted in `report()`."""


class ConfigError(SophonError, ValueError):
    """An argument or setting that cannot work; the text names the rule and the value."""


class PlanError(ConfigError):
    """Facts, rates or a plan that a policy cannot work with."""


class NoRoom(SophonError, RuntimeError):
    """A batch needs more descriptors or shared memory than there are; the text names the limit and the remedy."""


class PipelineError(SophonError, ValueError):
    """A pipeline description that names an unknown op or parameters the op refuses."""


class TooManyPixels(PipelineError):
    """An op that would make a larger image than an agent runs for others; a loader never raises it."""


class ProgramRefused(SophonError, ValueError):
    """A program with a step that its kind does not know, with numbers out of range, or with more work than allowed."""


class EncodingError(SophonError):
    """A value that an encoding cannot carry, or a payload that is not what its header says."""


class WireError(SophonError):
    """A message that breaks the protocol of docs/wire.md.

    Attributes:
        request: number of the request that the message answers; None if unknown.
    """

    request: int | None = None


class MalformedMessage(WireError):
    """A message whose frames or fields are not those of its kind."""


class CorruptMessage(WireError):
    """A message that was damaged on its way: its checksum does not fit, even after it was asked for again."""


class MessageTooLong(WireError):
    """A message over the stated size limit."""


class VersionMismatch(WireError):
    """Loader and agent speak no common protocol version."""


class AgentError(SophonError):
    """An agent that cannot or will not serve."""


class AgentUnreachable(AgentError, ConnectionError):
    """No agent answered at the address within the deadline."""


class KeyRefused(AgentError, PermissionError):
    """The agent has keys and the loader none, or one that the agent does not let in, or the other way round."""


class UnknownExport(AgentError):
    """The agent has no export of that name."""


class AgentBusy(AgentError):
    """The agent refused the request because a limit of its own is reached."""


class SampleError(SophonError):
    """One sample that the agent cannot serve, or serves wrongly."""


class SampleDiffers(SampleError):
    """The agent has another file than this host, or computes another value from the same one."""


class SampleMissing(SampleError, FileNotFoundError):
    """The export has no such file."""


class SampleOutsideExport(SampleError, PermissionError):
    """The key points outside the export (`..`, an absolute path, a symlink that leaves it)."""


class SampleUnreadable(SampleError, OSError):
    """The file is there but cannot be read (permissions, not a regular file, over the size limit)."""


def may_come(error: SophonError) -> bool:
    """Return True if the agent that caused this error may serve later: it is away, starts, stops, or has another
    release.

    Any other error, of a key for example, would come again until a person acts.
    """
    return isinstance(error, (AgentUnreachable, AgentBusy, VersionMismatch)) or type(error) is AgentError


def add_note(error: BaseException, text: str) -> None:
    """Attach a text to an error so that its traceback shows it (also before Python 3.11).

    Args:
        error: changed in place.
        text: one line, without its end.
    """
    if sys.version_info >= (3, 11):
        error.add_note(text)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{text}", *error.args[1:])
    else:
        error.args = (*error.args, text)


def note_foreign(error: BaseException, text: str) -> None:
    """`add_note` for an error from code outside of this package: an op, a label's transform.

    Args:
        error: just caught, by the caller of that code.
        text: see `add_note`.
    """
    add_note(error, text)
    with contextlib.suppress(AttributeError):  # a class with slots
        error.sophon_foreign = error.__traceback__ and error.__traceback__.tb_next  # type: ignore[attr-defined]


def frames_for_user(error: BaseException) -> TracebackType | None:
    """Return the traceback to raise an error with again: without frames of this package that are useless to its user.

    Frames above a call of code outside of this package (`note_foreign`) are left out, and all frames of errors that
    this package raises on purpose, whose text says everything. Any other error is a bug, and keeps all.

    Example:
        >>> except Exception as error:
        ...     error.__traceback__ = frames_for_user(error)
        ...     raise error
    """
    if isinstance(error, (ConfigError, AgentError, SampleError)):
        return None
    foreign: TracebackType | None = getattr(error, "sophon_foreign", None)
    return error.__traceback__ if foreign is None else foreign


def without_frames(error: _Error) -> _Error:
    """Return a copy of an error, to be kept in an attribute, or to be raised again from there.

    An error that was raised holds the frames of all its callers: those of an epoch with its pipes and memory, and the
    user's training function with its tensors. Raising the kept error would add frames again.

    Args:
        error: unchanged, unless it cannot be copied; then it loses its own frames.

    Example:
        >>> except AgentUnreachable as error:
        ...     self.error = without_frames(error)
        >>> raise without_frames(self.error)
    """
    try:
        found = copy.copy(error)
    except Exception:  # a foreign class, whose constructor takes other arguments than it keeps
        found = error
    if type(found) is not type(error):
        found = error
    found.__traceback__ = found.__context__ = found.__cause__ = None
    values = vars(found)
    values.pop("sophon_foreign", None)
    if "__notes__" in values:  # else a note on the copy would be one on both
        values["__notes__"] = [*values["__notes__"]]
    return found


def raised_by_handler(error: BaseException) -> bool:
    """Return True if a signal's handler raised an error, which then says nothing about the interrupted code.

    The class of the error does not show that: a time-out may be an OSError. A handler is a function that Python was
    given, or one that holds the interrupted frame, as handlers (and trace functions) are called with it.

    Example:
        >>> try:
        ...     pixels = decode(file)
        ... except Exception as error:
        ...     if raised_by_handler(error):
        ...         raise
        ...     pixels = None
    """
    installed = {id(_code_of(signal.getsignal(number))) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if id(frame.f_code) in installed:
            return True
        # To look at the locals of a frame keeps them, with the error that it has just caught: a circle, which would
        # hold a loader's workers until a garbage collection. Neither package has a handler that is not installed.
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("sophon_loader", "torch") and any(
            map(_holds_a_frame, frame.f_locals.values())
        ):
            return True
        trace = trace.tb_next
    return False


def _code_of(handler: Any) -> object:
    """Return the code of a Python function, a method or a partial of one; else another object."""
    function = getattr(handler, "func", handler)
    return getattr(getattr(function, "__func__", function), "__code__", function)


def _holds_a_frame(value: object) -> bool:
    values = value if type(value) is tuple else (value,)
    return any(isinstance(one, types.FrameType) for one in values)


def must_leave(error: BaseException) -> bool:
    """Return True if an error is not a refusal of a short cut, so that doing the work another way would only hide it.

    A signal's handler has raised it, or memory is short.
    """
    return isinstance(error, MemoryError) or raised_by_handler(error)


def warn_user(text: str) -> None:
    """Warn with an OffloadWarning that points at the user's line: the innermost frame outside of this package."""
    level = 1
    while sys._getframe(level).f_globals.get("__name__", "").startswith("sophon_loader."):
        level += 1
    warnings.warn(text, OffloadWarning, stacklevel=level + 1)
