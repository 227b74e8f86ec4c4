"""What every store refuses, in the same words."""

from __future__ import annotations

from sophon_loader.errors import AgentBusy, SampleMissing, SampleOutsideExport, SampleUnreadable
from sophon_loader.wire.limits import MAX_KEY_NBYTES


def check_key(export: str, key: str) -> None:
    """See that a key is a path below an export.

    Raises:
        SampleOutsideExport: it is absolute, or has `..`.
        SampleMissing: no file can have that name.
    """
    if not key or key.startswith("/") or "\0" in key or ".." in key.split("/"):
        text = f"key must be a path relative to export {export!r} without '..', got {key[:200]!r}"
        raise SampleOutsideExport(text)
    try:
        nbytes = len(key.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        nbytes = MAX_KEY_NBYTES + 1
    if nbytes > MAX_KEY_NBYTES:
        raise SampleMissing(f"file must exist in export {export!r}, got {key[:40]!r}, which cannot be a file's name")


def missing(export: str, key: str) -> SampleMissing:
    """The error for a key that no file has."""
    return SampleMissing(f"file must exist in export {export!r}, got {key[:200]!r}")


def leaves(export: str, key: str) -> SampleOutsideExport:
    """The error for a link that leads out of the export."""
    return SampleOutsideExport(f"key must stay inside export {export!r}, got {key!r}, a link that leaves it")


def no_file(export: str, key: str) -> SampleUnreadable:
    """The error for a folder, pipe, socket or device."""
    return SampleUnreadable(f"sample must be a regular file, got {key!r} of export {export!r}")


def too_large(export: str, key: str, nbytes: int, at_most: int) -> SampleUnreadable:
    """The error for a file above the agent's limit."""
    return SampleUnreadable(
        f"file must be at most {at_most} bytes, got {nbytes} for {key!r} of "
        f"export {export!r}; raise the agent's --max-file-mb"
    )


def unreadable(export: str, key: str, why: str | None) -> SampleUnreadable:
    """The error for a file that the system does not give."""
    return SampleUnreadable(f"file must be readable by the agent, got {key!r} of export {export!r}: {why}")


def no_descriptor() -> AgentBusy:
    """The error where too many files and connections are open."""
    return AgentBusy("the agent has no file descriptor left; raise its limit of open files (ulimit -n)")
