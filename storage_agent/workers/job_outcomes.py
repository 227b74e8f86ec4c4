"""Ends of jobs of both kinds: a value in an encoding that its loader allows, or a note on an error."""

from __future__ import annotations

import time
import traceback

from sophon_loader.encodings.encoding import Encoded
from sophon_loader.encodings.registry import encode
from sophon_loader.errors import EncodingError, TooManyPixels
from sophon_loader.kinds.image.opening import name_file
from sophon_loader.pipeline.told import OpenedOtherwise
from sophon_loader.wire.limits import MAX_PAYLOAD_NBYTES
from storage_agent.jobs.jobs import Job

NOTE_LIMIT = 2000
"""Characters of the beginning, and as many of the end, of a traceback that goes to a loader."""


def encoded_at(job: Job, value: object, encoding: str, cut: int, op_s: list[float], since_s: float) -> Encoded:
    """A value in an encoding that its loader allows; appends the CPU seconds since `since_s` to `op_s`.

    Raises:
        EncodingError: none that is allowed takes it, or it would be too large.
    """
    encoded = encode(value, encoding, keep_info=job.fetch.keep_info, allowed=job.fetch.allowed)
    if len(encoded.payload) > MAX_PAYLOAD_NBYTES:
        raise EncodingError(f"value at cut {cut} must be at most {MAX_PAYLOAD_NBYTES} bytes")
    op_s.append(time.thread_time() - since_s)
    return encoded


def note_of(error: Exception, key: str) -> str:
    """Return the text that goes to a loader with the file of a key, in place of what failed."""
    name_file(error, key)
    # These texts say it all, and may come with every sample.
    says_all = isinstance(error, (EncodingError, TooManyPixels, OpenedOtherwise, Warning))
    shown = traceback.format_exception_only if says_all else traceback.format_exception
    text = "".join(shown(error))
    if len(text) > 2 * NOTE_LIMIT:
        text = f"{text[:NOTE_LIMIT]} ... {text[-NOTE_LIMIT:]}"
    return f"{type(error).__name__} at the agent:\n{text}"
