"""The limits of messages, stated in docs/wire.md."""

from __future__ import annotations

MAX_HEADER_NBYTES = 8 << 20
MAX_PAYLOAD_NBYTES = 1 << 30
"""Also of a file: one that does not fit a payload cannot be served."""
MAX_TEXT_LENGTH = 1 << 16
"""Characters of one text field."""
MAX_OPS = 64
"""Of a pipeline, op 0 included."""
MAX_UINT = (1 << 64) - 1
"""The largest integer that msgpack can write. What only selects random numbers is cut to its bits before it is sent."""
